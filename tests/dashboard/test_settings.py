"""Configuration files of unknown origin, as names and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyeyes.dashboard.settings import MAX_CHARACTERS, MAX_SETTINGS, compact_settings, read_settings, safe_text


def read(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "config.yaml").write_text(text)
    return read_settings(str(tmp_path / "config.yaml"))


def test_settings_are_flat_texts_as_written(tmp_path: Path) -> None:
    options = "  lr: 1.0e-08\n  nesterov: false\n  mean: [0.5, 0.25]\n  deep:\n    none: null\n"
    text = f"a:\n{options}rounds: 5\nfolder: x\nempty: ''\n"
    expected = {"a.lr": "1.0e-08", "a.nesterov": "false", "a.mean": "[0.5,0.25]", "a.deep.none": "null", "rounds": "5"}
    assert read(tmp_path, text) == expected | {"empty": ""}


def test_mappings_in_a_list_are_numbered(tmp_path: Path) -> None:
    assert read(tmp_path, "a:\n- b: 1\n") == {"a.0.b": "1", "a": "[]"}


@pytest.mark.parametrize(
    "text", ["", "just words", "- 1\n- 2\n", "a: [", "a: !!python/object:os.system x\n", "? [1]\n: 2\n", "1: 2\n"]
)
def test_a_file_that_is_not_a_configuration_has_no_settings(tmp_path: Path, text: str) -> None:
    assert set(read(tmp_path, text)) <= {"a"}


def test_aliases_are_not_followed_and_depth_is_limited(tmp_path: Path) -> None:
    laughs = "a: &a [x]\n" + "".join(
        f"{c}: &{c} [{f'*{b},' * 9}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert read(tmp_path, laughs)["a"] == "[x]"
    assert read(tmp_path, "[" * 5000 + "]" * 5000) == {}


def test_numbers_and_lengths_are_limited(tmp_path: Path) -> None:
    assert len(read(tmp_path, "".join(f"s{n}: 1\n" for n in range(2 * MAX_SETTINGS)))) == MAX_SETTINGS
    assert len(safe_text("x" * 10_000)) == MAX_CHARACTERS + 3
    assert read(tmp_path, "a: " + "x" * 2**19) == {}


def test_control_characters_are_replaced() -> None:
    assert (
        safe_text("a\u202eb\x1b[2Jc\n")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2Jc\N{REPLACEMENT CHARACTER}"
    )


def test_settings_of_many_runs_are_sent_without_repetition() -> None:
    runs = {"p": {"lr": "1", "model": "m"}, "q": {"lr": "2", "model": "m"}, "r": {"lr": "1", "model": "m", "mu": "3"}}
    assert compact_settings(runs) == {
        "common": {"model": "m"},
        "values": {"lr": ["1", "2"], "mu": [None, "3"]},
        "rows": {"p": [0, 0], "q": [1, 0], "r": [0, 1]},
    }
