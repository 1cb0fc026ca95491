"""Wrong values for every setting of `manyeyes run`, every flag of the other commands and every keyword of `train`.

They are generated from what components declare and what commands say they accept, so that a new setting is covered too.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import numpy as np
import torch

import manyeyes as me
from manyeyes.cli import main, one_line
from manyeyes.config.groups import GROUPS, NO_COMPONENT, nested_options, preprocess_options, run_options
from manyeyes.core.registry import Option, build, options_of
from manyeyes.engines.base import EngineOptions
from manyeyes.training.config import RunConfig
from tests.fuzz.targets import TINY_RUN

MAX_SENTENCE = 1500  # characters
EMPTY_PATHS = (". ", ".:", "/work")  # what an empty text is as a path
UNUSED_GROUPS = ("resume", "folder")  # say where a run is: strange texts for these are names of folders
HUGE = "99999999999999999999999"
LONG = "x" * 5000
ANY_TEXTS = ("nonsense", "ü\u202e", LONG, "../../outside", "/dev/null/x", "\\", "a b", "\0", "[", "5", "''")
SLOW_SETTINGS = (
    "epochs",
    "iterations",
    "rounds",
    "users",
    "size",
    "images_per_user",
    "fine",
)  # a large value takes long
DASHBOARD_FLAGS = {
    "--port": ("-1", "65536", "x", "", HUGE, "nan"),
    "--token": ("", "short", "ü" * 9),
    "--host": ("no.such.host.", "::x"),
}


@dataclass(frozen=True)
class Attempt:
    """A wrong or strange value of a setting."""

    args: tuple[str, ...]  # of the command, or nothing
    names: tuple[str, ...]  # of which the sentence must have one
    must_fail: bool  # else it may be accepted, and must then work
    call: Callable[[], object] | None = None  # of Python, instead of the command
    text: str = ""  # what describes the call

    def describe(self) -> str:
        return " ".join(arg if len(arg) < 100 else f"{arg[:100]}..." for arg in self.args) or self.text


def scalar_kind(option: Option) -> tuple[Any, bool]:
    """Return the declared type without None, and whether it may be None; of an option without a type that of its default."""
    kinds = (
        [kind for kind in get_args(option.type) if kind is not NoneType] if NoneType in get_args(option.type) else []
    )
    kind = kinds[0] if len(kinds) == 1 else option.type
    return (get_origin(kind) or kind), bool(kinds) or option.default is None


def wrong_texts(option: Option) -> Iterator[tuple[str, bool]]:
    """Yield values as they are typed, and whether each must be refused."""
    kind, is_optional = scalar_kind(option)
    is_known = kind in (int, float, bool, str, tuple)
    yield "{a: 1}", is_known
    yield "${rounds}", True
    yield "${oc.env:NOWHERE_AT_ALL}", True
    yield "???", is_known
    yield "null", is_known and not is_optional
    yield "[1,2]", kind in (int, float, bool)
    yield "1,2", True
    if kind in (int, float):
        yield from ((text, True) for text in ("text", "", "inf", "-inf", "nan", "1e400", "[]", "0x", f"-{HUGE}"))
        yield from ((text, float(text) not in option.bounds) for text in ("-1", "0"))
        yield HUGE, kind is int or float(HUGE) not in option.bounds
    if kind is int:
        yield from (("1.5", True), ("1e3", True), ("9" * 5000, True), ("1_0", False), ("\u0661", False))
    elif kind is float:
        yield from (("1e-320", False), ("1e300", False), ("9" * 5000, True))
    elif kind is bool:
        yield from ((text, True) for text in ("maybe", "nan", ""))
    elif kind is tuple:
        are_texts = str in get_args(option.type)
        yield from ((text, True) for text in ("5", "text", "[[1,2],[3]]", "[null]"))
        yield from ((text, not are_texts) for text in ("[a,b]", "[nan,nan,nan]", "[inf,inf]"))
    elif kind is str:
        yield from ((text, bool(option.bounds.choices)) for text in ANY_TEXTS)


def run_settings() -> Iterator[tuple[tuple[str, ...], str, Option]]:
    """Yield every setting of `manyeyes run` once, with what has to be chosen for it."""
    yield from (((), option.name, option) for option in run_options())
    yield from with_prefix((), "preprocess", preprocess_options())
    seen = set()
    for group in GROUPS.values():
        for choice in group.choices():
            if choice == NO_COMPONENT:
                continue
            chosen = f"{group.name}=[{choice}]" if group.is_list else f"{group.name}={choice}"
            for setting in with_prefix((chosen,), group.prefix(choice), group.options(choice)):
                key = (setting[1], str(setting[2].type), setting[2].bounds)
                if key not in seen:
                    seen.add(key)
                    yield setting


def with_prefix(
    chosen: tuple[str, ...], prefix: str, options: tuple[Option, ...]
) -> Iterator[tuple[tuple[str, ...], str, Option]]:
    for option in options:
        if nested := nested_options(option):
            yield from with_prefix(chosen, f"{prefix}.{option.name}", nested)
        else:
            yield chosen, f"{prefix}.{option.name}", option


@cache
def run_attempts() -> tuple[Attempt, ...]:
    """Return wrong values for every setting, near misses of its name, and wrong choices of every group."""
    attempts = []
    for chosen, name, option in run_settings():
        last = name.rpartition(".")[2]
        has_data = any(choice.startswith("data=") for choice in chosen)  # which has other options
        if "correction=feddyn" in chosen:
            chosen = (*chosen, "client_weighting=uniform")  # which it needs
        run = [setting for setting in TINY_RUN if not (has_data and setting.startswith("data."))]
        for text, must_fail in wrong_texts(option):
            if name in UNUSED_GROUPS and not must_fail:
                continue
            if last in SLOW_SETTINGS and text in (HUGE, "1e300"):
                must_fail = True
            attempts.append(Attempt(("run", *run, *chosen, f"{name}={text}"), (name, last, text), must_fail))
        for near in (f"{name}s", name[:-1], name.replace("_", "-"), name.upper(), f"{name}.x"):
            if near != name and near not in known_names():
                attempts.append(Attempt(("run", *run, *chosen, f"{near}=1"), (near, near.partition(".")[0]), True))
    for name in GROUPS:
        for text in (
            "nonsense",
            "5",
            "[]",
            "{}",
            "null",
            "''",
            "no.module:Thing",
            "os:path",
            "os:getcwd",
            ":",
            "a:",
            "${rounds}",
            "../x",
        ):
            is_list = GROUPS[name].is_list
            must_fail = text in ("nonsense", "5", "no.module:Thing", "os:path", "${rounds}", "../x") and not (
                is_list and text == "5"
            )
            attempts.append(Attempt(("run", *TINY_RUN, f"{name}={text}"), (name, text), must_fail))
    return tuple(attempts)


@cache
def known_names() -> frozenset[str]:
    return frozenset(name for _, name, _ in run_settings())


FLAG_TEXTS = (
    "",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1.5",
    HUGE,
    "9" * 5000,
    "text",
    "[1,2]",
    "null",
    "1e400",
    "ü\u202e",
    "../../outside",
    "${rounds}",
)
FLAG_COMMANDS: tuple[tuple[tuple[str, ...], str], ...] = (  # a command that works, and the text that separates its flags
    (("data", "prepare", "folder", "--raw", "raw/folder", "--size", "8", "--processes", "1", "--out", "out/store"), "data prepare folder"),
    (("data", "prepare", "cifar10", "--raw", "raw/cifar10", "--processes", "1", "--out", "out/store", "--users", "4"), "data prepare cifar10"),
    (("data", "prepare", "cifar100", "--raw", "raw/cifar100", "--processes", "1", "--out", "out/store", "--users", "4"), "data prepare cifar100"),
    (("data", "prepare", "flickr_aes", "--raw", "raw/flickr_aes", "--raters", "2", "--min-ratings", "2", "--min-per-score", "0", "--processes", "1", "--out", "out/store", "--size", "8"), "data prepare flickr_aes"),
    (("data", "prepare", "inaturalist", "--raw", "raw/inaturalist", "--processes", "1", "--out", "out/store", "--size", "8"), "data prepare inaturalist"),
    (("data", "prepare", "landmarks", "--raw", "raw/landmarks", "--processes", "1", "--out", "out/store", "--size", "8"), "data prepare landmarks"),
    (("data", "prepare", "flair", "--raw", "raw/flair", "--processes", "1", "--out", "out/store", "--size", "8"), "data prepare flair"),
    (("data", "inspect", "store", "--out", "out/page"), "data inspect"),
    (("data", "synthesize", "folder", "--raw", "out/raw", "--users", "3", "--images-per-user", "2", "--size", "32", "--coarse", "2", "--fine", "4"), "data synthesize"),
    (("privacy", "plan", "--users", "1000", "--cohort-size", "20", "--rounds", "50", "--epsilon", "4", "--delta", "1e-6", "--out", "out/plan"), "privacy plan"),
    (("estimate", *TINY_RUN, "--images-per-second", "100"), "estimate"),
    (("report", "run", "--out", "out/page.html"), "report"),
    (("users", "run", "--out", "out/users.svg"), "users"),
    (("flower", "init", "out/app", *TINY_RUN), "flower init"),
    (("flower", "split", "out/stores", *TINY_RUN, "--users", "2"), "flower split"),
    (("flower", "keys", "out/keys", "--clients", "1"), "flower keys"),
)  # fmt: skip


@cache
def flag_attempts() -> tuple[Attempt, ...]:
    """Return wrong values of every flag of the commands, near misses of its name, and settings of `reproduce`."""
    attempts = []
    for args, prog in FLAG_COMMANDS:
        for flag in flags_of(prog):
            for text in FLAG_TEXTS:
                if flag == "--size" and text in (HUGE,):
                    continue
                names = (flag, flag.strip("-").replace("-", "_"), text)
                attempts.append(
                    Attempt((*args, f"{flag}={text}"), names, must_fail=len(text) == 5000 and "out" not in flag)
                )
            attempts.append(Attempt((*args, f"{flag}x=1"), (f"{flag}x",), True))
    for flag, texts in DASHBOARD_FLAGS.items():
        attempts += [Attempt(("dashboard", ".", "--port=0", f"{flag}={text}"), (flag, "Port"), True) for text in texts]
    attempts.append(Attempt(("dashboard", "nowhere"), ("nowhere",), True))
    for option in reproduce_options():
        for text in (
            "nan",
            "-1",
            "0",
            "1.5",
            "inf",
            HUGE,
            "text",
            "[1,2]",
            "null",
            "${rounds}",
            "../../outside",
            "ü\u202e",
        ):
            must_fail = option.type in (int, float) and text not in ("0", "1.5")
            attempts.append(
                Attempt(
                    ("reproduce", "hsu2020.table2", "--plan", f"{option.name}={text}"), (option.name, text), must_fail
                )
            )
        attempts.append(
            Attempt(("reproduce", "hsu2020.table2", "--plan", f"{option.name}x=1"), (f"{option.name}x",), True)
        )
    return tuple(attempts)


def reproduce_options() -> tuple[Option, ...]:
    from manyeyes.papers.plan import ReproduceOptions

    return options_of(ReproduceOptions)


def flags_of(prog: str) -> list[str]:
    """Return the flags of a command that take a value, as its help shows them."""
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main([*prog.split(), *(("x",) if prog.startswith("flower") else ()), "--help"])
    return sorted(set(re.findall(r"^  (--[a-z][a-z-]*) [A-Z]", out.getvalue(), re.MULTILINE)))


PYTHON_VALUES: tuple[Any, ...] = (
    None, "text", "", [], {}, (1, 2), {"a": 1}, b"x", object, 1.5, -1, 0, 10**23, -(10**23), 10**5000, float("inf"), float("-inf"), float("nan"), True,
    np.int64(-1), np.float64("nan"), np.zeros(3), "\0", 1j, 2**40,
)  # fmt: skip


@cache
def python_attempts() -> tuple[Attempt, ...]:
    """Return wrong values of every keyword of `train`, and of every option of every component."""
    attempts = []
    for kind in (RunConfig, EngineOptions):
        for option in options_of(kind):
            for value in PYTHON_VALUES:
                if isinstance(value, int) and value == 2**40:
                    continue  # of rounds, it takes long
                call = _train_call(option.name, value)
                attempts.append(
                    Attempt(
                        (), (option.name,), _must_fail(option, value), call, f"train({option.name}={_brief(value)})"
                    )
                )
            attempts.append(
                Attempt((), (f"{option.name}s",), True, _train_call(f"{option.name}s", 1), f"train({option.name}s=1)")
            )
    for group in GROUPS.values():
        for choice in group.choices():
            if choice == NO_COMPONENT or group.name in ("data", "engine", "model"):
                continue
            for option in group.options(choice):
                for value in PYTHON_VALUES:
                    call = _build_call(group.slot, choice, option.name, value)
                    text = f"build({group.slot}={choice}, {option.name}={_brief(value)})"
                    attempts.append(Attempt((), (option.name,), _must_fail(option, value), call, text))
    return tuple(attempts)


def _must_fail(option: Any, value: Any) -> bool:
    """Return whether a value cannot be one of an option: only what is of the wrong kind beyond doubt."""
    default = option.default
    if isinstance(value, type | dict) and isinstance(default, int | float | str):
        return True
    if isinstance(default, int | float) and not isinstance(default, bool):
        is_number = isinstance(value, int | float) and value == value and abs(value) < 10**20
        return not is_number and not isinstance(value, np.generic)
    return False


def _brief(value: Any) -> str:
    text = "10**5000" if isinstance(value, int) and value > 10**100 else repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def _train_call(name: str, value: Any) -> Callable[[], object]:
    def call() -> object:
        options: dict[str, Any] = {
            "rounds": 1,
            "evaluate_every": 0,
            "engine": "reference",
            "threads": 1,
            "progress": False,
        }
        return me.train(_population(), "linear", me.fedavg(cohort_size=2, batch_size=4), **(options | {name: value}))

    return call


def _build_call(slot: str, choice: str, name: str, value: Any) -> Callable[[], object]:
    return lambda: build(slot, {"name": choice, name: value})


@cache
def _population() -> me.Population:
    rng = np.random.default_rng(0)
    split = np.where(np.arange(24) % 6 == 0, "test", "train")
    labels = me.SingleLabels(rng.integers(0, 2, 24), ("cat", "dog"))
    pixels = rng.integers(0, 256, (24, 8, 8, 3), np.uint8)
    return me.Population.from_arrays(pixels, labels, np.repeat(np.arange(4), 6), split=split)


def write_inputs(folder: Path) -> None:
    """Write what the commands read: raw datasets, a store and a run."""
    previous = Path.cwd()
    os.chdir(folder)
    try:
        for name in ("folder", "cifar10", "cifar100", "flickr_aes", "inaturalist", "landmarks", "flair"):
            few = ("--users", "10", "--images-per-user", "5", "--size", "32", "--coarse", "2", "--fine", "4")
            assert main(["data", "synthesize", name, "--raw", f"raw/{name}", *few]) == 0, name
        assert (
            main(
                [
                    "data",
                    "prepare",
                    "folder",
                    "--raw",
                    "raw/folder",
                    "--size",
                    "8",
                    "--processes",
                    "1",
                    "--out",
                    "store",
                ]
            )
            == 0
        )
        assert main(["run", *TINY_RUN, "folder=run"]) == 0
    finally:
        os.chdir(previous)


def problem(attempt: Attempt, folder: Path) -> tuple[str, str]:
    """Make an attempt in a folder that has the inputs: return "", "refused", or why it is a failure, and what was printed."""
    torch.set_num_threads(1)
    os.chdir(folder)
    shutil.rmtree("out", ignore_errors=True)
    before = _files(folder)
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            if attempt.call is None:
                code = main(attempt.args)
            else:
                attempt.call()
                code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except ValueError as error:
        if attempt.call is None:
            return _exception(error)
        code = 1
        err.write(f"manyeyes: {error}\n")
    except BaseException as error:
        return _exception(error)
    new = sorted(_files(folder) - before)
    for name in new:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if code == 0:
        return ("accepted, and should not be", attempt.describe()) if attempt.must_fail else ("", "")
    return _sentence_problem(attempt, code, err.getvalue(), new)


def _exception(error: BaseException) -> tuple[str, str]:
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "manyeyes/" in f.filename
    ] or traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__} in {Path(frames[-1].filename).name}:{frames[-1].name}", traceback.format_exc()[
        -3000:
    ]


def _sentence_problem(attempt: Attempt, code: int, err: str, new: list[str]) -> tuple[str, str]:
    lines = err.strip().splitlines() or [""]
    if code not in (1, 2):
        return f"exit code {code}", err[-2000:]
    if "Traceback" in err:
        return "traceback", err[-3000:]
    if not lines[-1].startswith("manyeyes: ") or len(lines[-1]) > MAX_SENTENCE:
        return "not a sentence", err[-2000:]
    if "diverged" in lines[-1]:
        return "refused", ""  # after training with a strange but possible value
    if new:
        return f"refused, and wrote {new[0].split('/')[0]}", err[-2000:]
    quoted = [one_line(name)[:50] or "''" for name in attempt.names]
    if not any(name in lines[-1] for name in (*quoted, *(EMPTY_PATHS if "" in attempt.names else ()))):
        return "a sentence without the setting", lines[-1][:600]
    return "refused", ""


def _files(folder: Path) -> set[str]:
    """Return what is in the folder, below `out` and next to the folder."""
    top = {path.name for path in folder.iterdir()} | {f"../{path.name}" for path in folder.parent.iterdir()}
    return top | {str(path.relative_to(folder)) for path in folder.glob("out/**/*")}


KINDS = {"settings_run": run_attempts, "settings_flags": flag_attempts, "settings_python": python_attempts}


@dataclass(frozen=True)
class SettingsCase:
    """One kind of attempts, in a random order that depends on a seed."""

    name: str
    inputs: Path  # that `write_inputs` wrote
    memory_bytes: int = 2**31

    @property
    def count(self) -> int:
        return len(KINDS[self.name]())

    def attempt(self, seed: int, index: int) -> Attempt:
        attempts = KINDS[self.name]()
        return attempts[
            random.Random(f"{seed}/{self.name}").sample(range(len(attempts)), len(attempts))[index % len(attempts)]
        ]

    def check(self, seed: int, index: int, folder: Path) -> tuple[str, str]:
        work = folder / "work"
        if not work.exists():
            shutil.copytree(self.inputs, work)
        attempt = self.attempt(seed, index)
        reason, detail = problem(attempt, work)
        is_failure = reason not in ("", "refused")
        return (f"{reason} ({attempt.names[0]})", f"{attempt.describe()}\n{detail}") if is_failure else (reason, "")
