"""`manyeyes bench` as a person calls it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rounds import one
from benchmarks.rounds.case import Case, Measured
from benchmarks.rounds.command import _parser, bench, cases, variants
from benchmarks.rounds.process import family, host_bytes, measure


def ended(process: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()  # nobody may have asked how
    except OSError:
        return True


def asked(*words: str) -> list[Case]:
    return list(cases(_parser().parse_args([*words, "--device", "cpu"])))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["huge"], "work 'huge' is unknown: choose small, hsu"),
        (["--peers", "tff"], "peer 'tff' is unknown: choose plain, pfl, flower, handwritten"),
        (["--engines", "auto,warp"], "engine 'warp' is unknown: choose auto, reference, ranks, vector, lanes"),
        (["--python", "pfl=/no/such/python"], "--python is 'pfl=/no/such/python': give NAME=PATH"),
        (["--users", "many"], "--users is 'many': give a number"),
        (["--cohort", "0"], "--cohort is '0': give a number"),
        (["small", "--users", "5"], "a cohort of 10 clients is asked of 5 users"),
        (["central", "--cohort", "5"], "centralised training has no cohort"),
        (["small", "--scaling"], "--scaling brings its own work"),
        (["--rounds", "0"], "give at least 1 round"),
        (["--precision", "float32,fp16"], "precision is 'fp16': choose auto, float32, tf32, bf16"),
        (["--record", "nowhere/record.json"], "there is no folder nowhere"),
        (["--fast"], "unrecognized arguments: --fast (see manyeyes bench --help)"),
    ],
)
def test_a_wrong_word_is_refused_in_a_sentence(command: Callable[..., Any], words: list[str], sentence: str) -> None:
    outcome = command("bench", *words)
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"manyeyes: {sentence}")


def test_a_cpu_is_given_the_small_work_ours_first() -> None:
    found = asked()
    assert {case.work for case in found} == {"small"}
    assert [case.runner for case in found][:2] == ["ours", "plain"] and found[-1].runner == "flower"


def test_sizes_multiply_and_peers_are_those_of_the_work() -> None:
    found = asked("crowd", "--users", "100,1000", "--cohort", "5,50", "--engines", "auto,reference", "--peers", "pfl")
    assert [(case.users, case.cohort) for case in found[::2]] == [(100, 5), (100, 50), (1000, 5), (1000, 50)]
    assert {case.label for case in found} == {"manyeyes auto", "manyeyes reference"}


def test_scaling_changes_users_and_then_the_cohort() -> None:
    found = asked("--scaling", "--peers", "")
    assert [(case.users, case.cohort) for case in found] == [(100, 50), (1_000_000, 50), (1_000_000, 5_000)]


def test_peers_are_tried_in_their_best_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert variants("plain", "cpu") == [{"threads": 1}, {"threads": 2}]
    assert variants("pfl", "cpu")[-1] == {"threads": 1, "processes": 2}
    assert variants("flower", "cpu", bf16=True) == [{}, {"precision": "bf16"}]
    assert len(variants("pfl", "cpu", bf16=True)) == 6
    assert variants("handwritten", "cuda") == [{"precision": "autocast"}, {"precision": "cast"}]


def test_a_runner_that_is_not_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(one.RUNNERS, "pfl", ("no_such_package", "install it"))
    assert one.main([json.dumps({"runner": "pfl"})]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["failure"] == "not installed" and seen["reason"].endswith(": install it")


def test_a_missing_peer_is_one_row(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(case: Case, *_: object) -> Measured:
        return Measured(case, failure="not installed", reason="get it")

    monkeypatch.setattr("benchmarks.rounds.command.measure", absent)
    outcome = command("bench", "small", "hsu", "--device", "cpu", "--engines", "", "--peers", "pfl,flower")
    assert outcome.code == 0
    assert outcome.out.count("not installed (get it)") == 2


def test_a_case_runs_in_a_process_and_is_recorded(command: Callable[..., Any], tmp_path: Path) -> None:
    words = ["crowd", "--users", "20", "--cohort", "3", "--rounds", "2", "--warmup", "1", "--device", "cpu"]
    outcome = command("bench", *words, "--peers", "", "--engines", "reference", "--record", "record.json")
    assert outcome.code == 0, outcome.err
    assert "crowd, 20 users, 3 clients: manyeyes reference:" in outcome.out
    record = json.loads((tmp_path / "record.json").read_text())
    (row,) = record["rows"]
    assert len(row["seconds"]) == 2 and row["images"] == [15, 15] and row["ratio"] == 1.0
    assert row["host_bytes"] > 50 * 2**20 and row["versions"]["torch"]
    assert record["command"].startswith("manyeyes bench crowd --users 20")


def test_who_stops_it_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(case: Case, *how: Any) -> Measured:
        if case.private:
            raise KeyboardInterrupt
        return Measured(case, seconds=(2.0,), images=(10,))

    monkeypatch.setattr("benchmarks.rounds.command.measure", measured)
    with pytest.raises(KeyboardInterrupt):
        bench(["small", "--private", "--device", "cpu", "--record", str(tmp_path / "record.json")])
    (row,) = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert row["seconds"] == [2.0]


def test_a_case_that_fails_is_a_row_with_its_reason() -> None:
    row = measure(Case("small", "ours", "cpu", rounds=1, warmup=0, engine="warp"))
    assert row.failure == "failed" and "engine 'warp' is unknown" in row.reason


def test_a_case_that_dies_is_a_row_too() -> None:
    row = measure(Case("small", "ours", "cpu", rounds=1, warmup=0), python="/bin/false")
    assert row.failure == "failed" and row.reason.startswith("ended with code 1")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_case_does_not_outlive_the_command(
    spawn: Callable[..., Any], until: Callable[..., None], number: int, code: int
) -> None:
    words = ["bench", "crowd", "--cohort", "100", "--rounds", "100000", "--device", "cpu", "--engines", "reference"]
    process = spawn("-m", "manyeyes", *words)
    until(lambda: len(family(process.pid)) > 1)
    child = family(process.pid)[1]
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    until(lambda: ended(child))


def test_memory_counts_a_process_and_its_children(spawn: Callable[..., Any]) -> None:
    grown = "import sys; held = bytearray(2**26); print('held', flush=True); sys.stdin.read()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grown!r}])"
    process = spawn("-c", nested, stdin=subprocess.PIPE)
    assert process.stdout.readline().strip() == "held"
    assert host_bytes(process.pid) > 2**26
