"""JSON and YAML of unknown origin are read within bounds."""

from __future__ import annotations

import pytest

from manyeyes.io.parsing import parse_json, parse_yaml

LEVELS = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 10)]
ALIASES = "\n".join(["l0: &l0 [x, x]", *LEVELS])  # 9 ** 9 values in 500 bytes


def test_values_and_a_few_aliases_are_read() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}
    assert parse_yaml("") is None
    assert parse_json('{"a": [1.5, null]}') == {"a": [1.5, None]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "its aliases repeat too many values"),
        ("&a [*a]", "nested too deeply"),
        ("[" * 20_000, "nested too deeply|while parsing"),
        ("a: 0x" + "f" * 5000, "more than 1000 digits"),
        ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        ("a: *missing", "undefined alias"),
        ("a: b: c", "mapping values are not allowed"),
    ],
)
def test_yaml_beyond_the_bounds_is_a_value_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)


def test_deeply_nested_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)
