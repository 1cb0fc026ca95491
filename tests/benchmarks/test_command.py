"""`python -m benchmarks.rounds`: its options, its records, and the processes it starts."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rounds import subprocess_main
from benchmarks.rounds.case import BenchCase, BenchResult
from benchmarks.rounds.command import main, make_cases, make_parser, peer_variants, run_benchmark
from benchmarks.rounds.process import ROOT, host_bytes, process_tree, time_case


def has_ended(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()  # a zombie
    except OSError:
        return True


def cases_of(*args: str) -> list[BenchCase]:
    return list(make_cases(make_parser().parse_args([*args, "--device", "cpu"])))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["huge"], "Unknown workload 'huge': choose small, hsu"),
        (["--peers", "tff"], "Unknown --peers 'tff': choose plain, pfl, flower, handwritten"),
        (["--engines", "auto,warp"], "Unknown --engines 'warp': choose auto, reference, "),
        (["--python", "pfl=/no/such/python"], "--python is 'pfl=/no/such/python': set it to NAME=PATH"),
        (["--users", "many"], "--users is 'many': set it to a number"),
        (["--cohort", "0"], "--cohort is '0': set it to a number"),
        (["small", "--users", "5"], "A cohort of 10 clients needs at least as many users and there are 5"),
        (["central", "--cohort", "5"], "Centralized training has no cohort"),
        (["small", "--scaling"], "--scaling sets the workload"),
        (["--rounds", "0"], "Set --rounds to at least 1"),
        (["--precision", "float32,fp16"], "engine.precision is 'fp16': choose auto, float32, tf32, bf16"),
        (["--record", "nowhere/record.json"], "No folder nowhere"),
        (["--fast"], "unrecognized arguments: --fast (see python -m benchmarks.rounds --help)"),
    ],
)
def test_a_wrong_option_is_one_sentence(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert main([*args, "--device", "cpu"] if "--fast" not in args else args) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"benchmarks.rounds: {message}")


def test_the_default_on_a_cpu_is_the_small_workload_with_our_engine_first() -> None:
    cases = cases_of()
    assert {case.workload for case in cases} == {"small"}
    assert [case.runner for case in cases][:2] == ["ours", "plain"] and cases[-1].runner == "flower"


def test_sizes_are_combined_and_peers_are_those_of_the_workload() -> None:
    cases = cases_of(
        "crowd", "--users", "100,1000", "--cohort", "5,50", "--engines", "auto,reference", "--peers", "pfl"
    )
    assert [(case.users, case.cohort) for case in cases[::2]] == [(100, 5), (100, 50), (1000, 5), (1000, 50)]
    assert {case.label for case in cases} == {"manyeyes auto", "manyeyes reference"}


def test_scaling_changes_the_users_and_then_the_cohort() -> None:
    cases = cases_of("--scaling", "--peers", "")
    assert [(case.users, case.cohort) for case in cases] == [(100, 50), (1_000_000, 50), (1_000_000, 5_000)]


def test_peers_run_with_several_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert peer_variants("plain", "cpu") == [{"threads": 1}, {"threads": 2}]
    assert peer_variants("pfl", "cpu")[-1] == {"threads": 1, "processes": 2}
    assert peer_variants("flower", "cpu", bf16=True) == [{}, {"precision": "bf16"}]
    assert len(peer_variants("pfl", "cpu", bf16=True)) == 6
    assert peer_variants("handwritten", "cuda") == [{"precision": "autocast"}, {"precision": "cast"}]


def test_a_runner_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(subprocess_main.RUNNERS, "pfl", ("no_such_package", "install it"))
    assert subprocess_main.main([json.dumps({"runner": "pfl"})]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["failure"] == "not installed" and answer["reason"].endswith(": install it")


def test_a_peer_that_is_not_installed_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def time_missing(case: BenchCase, *_: object) -> BenchResult:
        return BenchResult(case, failure="not installed", reason="install it")

    monkeypatch.setattr("benchmarks.rounds.command.time_case", time_missing)
    assert main(["small", "hsu", "--device", "cpu", "--engines", "", "--peers", "pfl,flower"]) == 0
    assert capsys.readouterr().out.count("not installed (install it)") == 2


@pytest.mark.slow
def test_a_case_runs_in_a_process_and_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["crowd", "--users", "20", "--cohort", "3", "--rounds", "2", "--warmup", "1", "--device", "cpu"]
    record_path = tmp_path / "record.json"
    assert main([*args, "--peers", "", "--engines", "reference", "--record", str(record_path)]) == 0
    assert "crowd, 20 users, 3 clients: manyeyes reference:" in capsys.readouterr().out
    record = json.loads(record_path.read_text())
    (row,) = record["rows"]
    assert len(row["seconds"]) == 2 and row["images"] == [15, 15] and row["ratio"] == 1.0
    assert row["host_bytes"] > 50 * 2**20 and row["versions"]["torch"]
    assert record["command"].startswith("python -m benchmarks.rounds crowd --users 20")


def test_the_record_has_what_was_timed_before_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_or_interrupt(case: BenchCase, *_: object) -> BenchResult:
        if case.private:
            raise KeyboardInterrupt
        return BenchResult(case, seconds=(2.0,), images=(10,))

    monkeypatch.setattr("benchmarks.rounds.command.time_case", time_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(["small", "--private", "--device", "cpu", "--record", str(tmp_path / "record.json")])
    (row,) = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert row["seconds"] == [2.0]


@pytest.mark.slow
def test_a_case_that_fails_is_a_result_with_its_reason() -> None:
    result = time_case(BenchCase("small", "ours", "cpu", rounds=1, warmup=0, engine="warp"))
    assert result.failure == "failed" and "Unknown engine 'warp'" in result.reason


def test_a_case_whose_process_ends_is_a_result() -> None:
    result = time_case(BenchCase("small", "ours", "cpu", rounds=1, warmup=0), python="/bin/false")
    assert result.failure == "failed" and result.reason.startswith("ended with code 1")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_case_does_not_outlive_the_command(
    spawn: Callable[..., subprocess.Popen[str]],
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    args = ["crowd", "--cohort", "100", "--rounds", "100000", "--device", "cpu", "--engines", "reference"]
    process = spawn("-m", "benchmarks.rounds", *args)
    until(lambda: len(process_tree(process.pid)) > 1)
    child = process_tree(process.pid)[1]
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    until(lambda: has_ended(child))


def test_memory_includes_child_processes(spawn: Callable[..., Any]) -> None:
    allocate = "import sys; data = bytearray(2**26); print('allocated', flush=True); sys.stdin.read()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {allocate!r}])"
    process = spawn("-c", nested, stdin=subprocess.PIPE)
    assert process.stdout.readline().strip() == "allocated"
    assert host_bytes(process.pid) > 2**26
