"""What kind of core a machine has, from what Linux tells of it."""

from __future__ import annotations

import platform
from pathlib import Path

from manyeyes.io.cpu_info import cpu_name

TWO_CORES = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu vme

processor\t: 1
vendor_id\t: AuthenticAMD
"""


def test_the_first_core_is_named_with_its_maker_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(TWO_CORES)
    assert cpu_name(tmp_path / "cpuinfo") == "AuthenticAMD, AMD EPYC, cpu family 26, model 2"


def test_what_python_knows_is_said_where_the_system_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 100.00\n")  # as on ARM
    for told in ("cpuinfo", "missing"):
        assert cpu_name(tmp_path / told) == (platform.processor() or platform.machine())
