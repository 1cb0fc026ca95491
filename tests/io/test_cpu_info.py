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


def test_the_name_has_vendor_model_and_family_of_the_first_core(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(TWO_CORES)
    assert cpu_name(tmp_path / "cpuinfo") == "AuthenticAMD, AMD EPYC, cpu family 26, model 2"


def test_without_fields_the_name_is_that_of_the_platform_module(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 100.00\n")  # as on ARM
    for name in ("cpuinfo", "missing"):
        assert cpu_name(tmp_path / name) == (platform.processor() or platform.machine())
