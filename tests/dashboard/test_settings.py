"""Configurations of unknown origin, as names and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyeyes.dashboard.settings import LONGEST, MOST, differing, read_settings, shown


def read(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "config.yaml").write_text(text)
    return read_settings(str(tmp_path / "config.yaml"))


def test_settings_are_flat_and_as_they_are_written(tmp_path: Path) -> None:
    inside = "  lr: 1.0e-08\n  keep: false\n  mean: [0.5, 0.25]\n  deep:\n    none: null\n"
    text = f"a:\n{inside}rounds: 5\nfolder: x\nempty: ''\n"
    expected = {"a.lr": "1.0e-08", "a.keep": "false", "a.mean": "[0.5,0.25]", "a.deep.none": "null", "rounds": "5"}
    assert read(tmp_path, text) == expected | {"empty": ""}


def test_a_list_of_more_than_values_is_numbered(tmp_path: Path) -> None:
    assert read(tmp_path, "a:\n- b: 1\n") == {"a.0.b": "1", "a": "[]"}


@pytest.mark.parametrize(
    "text", ["", "just words", "- 1\n- 2\n", "a: [", "a: !!python/object:os.system x\n", "? [1]\n: 2\n", "1: 2\n"]
)
def test_what_is_no_configuration_does_no_harm(tmp_path: Path, text: str) -> None:
    assert set(read(tmp_path, text)) <= {"a"}


def test_references_are_not_followed_and_depth_ends(tmp_path: Path) -> None:
    laughs = "a: &a [x]\n" + "".join(
        f"{c}: &{c} [{f'*{b},' * 9}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert read(tmp_path, laughs)["a"] == "[x]"
    assert read(tmp_path, "[" * 5000 + "]" * 5000) == {}


def test_there_are_bounds(tmp_path: Path) -> None:
    assert len(read(tmp_path, "".join(f"s{n}: 1\n" for n in range(2 * MOST)))) == MOST
    assert len(shown("x" * 10_000)) == LONGEST + 3
    assert read(tmp_path, "a: " + "x" * 2**19) == {}


def test_a_name_cannot_play_tricks() -> None:
    assert (
        shown("a\u202eb\x1b[2Jc\n")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2Jc\N{REPLACEMENT CHARACTER}"
    )


def test_settings_of_many_runs_are_told_once() -> None:
    runs = {"p": {"lr": "1", "model": "m"}, "q": {"lr": "2", "model": "m"}, "r": {"lr": "1", "model": "m", "mu": "3"}}
    assert differing(runs) == {
        "common": {"model": "m"},
        "values": {"lr": ["1", "2"], "mu": ["3"]},
        "rows": {"p": [0, -1], "q": [1, -1], "r": [0, 0]},
    }
