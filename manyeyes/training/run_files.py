"""The files of a run folder by name, and what they tell without being read in full: the status and the last event."""

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from manyeyes.core.population import CAVEAT_SEPARATOR
from manyeyes.io.parsing import parse_json, parse_yaml
from manyeyes.io.tail import TailReader, read_small_file
from manyeyes.training.run_checksums import check_text

CONFIG_FILE = "config.yaml"  # everything that was set
ENVIRONMENT_FILE = "environment.json"  # versions, machine, revision
DATASET_STATS_FILE = "dataset_stats.json"
METRICS_FILE = "metrics.jsonl"  # one event a round
CHECKPOINT_FILE = "checkpoint.safetensors"
CLIENT_STATES_FILE = "clients.bin"
CLIENTS_FILE = "clients.json"  # the client id of each user who has a personal model, by name
MODEL_FILE = "model.safetensors"  # of a finished run
PER_CLASS_FILE = "per_class.csv"
PER_USER_FILE = "per_user.csv"
EXAMPLE_IMAGES_FILE = "example_images.json"  # a few evaluated images and what the model says of them
PRIVACY_FILE = "privacy.json"
DIVERGED_FILE = "diverged.txt"  # why the run diverged, in one sentence
FAILED_FILE = "failed.txt"  # why the run failed, in one sentence
LOCK_FILE = ".lock"
CAVEATS_KEY = "data_caveats"  # in CONFIG_FILE: the caveats of the data, such as "synthetic images"
OLD_DATASET_STATS_FILE = "population.json"  # of a run folder that an older version of manyeyes wrote

Event = dict[str, Any]  # what is recorded of a round: one line of METRICS_FILE
Status = Literal["empty", "running", "stale", "stopped", "finished", "diverged", "failed"]
STALE_SECONDS = 300.0  # without a line, after which a running run is stale
STALE_ROUNDS = 20  # the same, in rounds of the run
TAIL_BYTES: tuple[int | None, ...] = (2**14, 2**20, None)  # of a metrics file that are searched for its last event
MAX_HEADER_BYTES = 2**26  # of a checkpoint
MAX_ROUND = 2**53  # exact as a float
LOCKS_FILE = "/proc/locks"
NANOSECONDS = 1e9  # per second


def with_caveats(text: str, caveats: Iterable[str]) -> str:
    """Return a name or a title, followed by the caveats of its data."""
    return f"{text} ({CAVEAT_SEPARATOR.join(caveats)})" if tuple(caveats) else text


def run_status(
    *,
    has_events: bool,
    is_complete: bool = False,  # its model was written after its last round
    failure: tuple[Status, str] | None = None,  # diverged or failed, and the reason
    is_locked: bool = False,  # by a process of this machine
    is_growing: bool = False,  # lines were added although no process of this machine has the run
    silent_seconds: float = 0.0,  # since its last line
    seconds_per_round: float = 0.0,
) -> tuple[Status, str]:
    """Return the status of a run, and an explanation where it needs one."""
    is_late = silent_seconds > max(STALE_SECONDS, STALE_ROUNDS * seconds_per_round)
    if is_locked:
        return ("stale", "its process exists, but writes nothing") if is_late else ("running", "")
    if failure:
        return failure
    if is_complete:
        return "finished", ""
    if is_growing:
        return ("stale", "a process on another machine no longer writes") if is_late else ("running", "")
    if has_events:
        return "stopped", "its process has ended: continue it with resume="
    return "empty", "it ended before round 1"


def read_status(folder: Path, last_event: Event | None = None, planned_rounds: int | None = None) -> tuple[Status, str]:
    """Return the status of the run in a folder; what the caller has read of it already is not read again."""
    model_time, metrics_time = (_modified_time(folder / name) for name in (MODEL_FILE, METRICS_FILE))
    last_event = last_event or read_last_event(folder / METRICS_FILE)
    is_complete = model_time > 0
    if is_complete and last_event is not None and last_event.get("stop_reason") is None:
        planned_rounds = planned_rounds or read_config(folder).get("rounds")
        is_complete = is_final_model(model_time, metrics_time, last_event["round"], planned_rounds)
    return run_status(
        has_events=last_event is not None,
        is_complete=is_complete,
        failure=read_failure(folder),
        is_locked=is_locked(folder / LOCK_FILE, locked_inodes()),
        silent_seconds=time.time() - metrics_time / NANOSECONDS if metrics_time else 0.0,
    )


def is_final_model(model_time: int, metrics_time: int, last_round: int, planned_rounds: object) -> bool:
    """Return whether a model of this time (0: no model) is that of the last round; a continued run has an old one."""
    is_last_round = isinstance(planned_rounds, int) and last_round >= planned_rounds
    return model_time > 0 and (model_time >= metrics_time or is_last_round)


def read_failure(folder: Path | str) -> tuple[Status, str] | None:
    """Return whether a run has diverged or failed, and the reason that it gave."""
    failures: tuple[tuple[Status, str], ...] = (("diverged", DIVERGED_FILE), ("failed", FAILED_FILE))
    for status, file in failures:
        try:
            return status, read_small_file(os.path.join(folder, file)).decode(errors="replace").strip()
        except FileNotFoundError:
            continue
        except OSError:
            return status, ""
    return None


def check_version(folder: Path) -> None:
    """Raise ValueError if an earlier version of manyeyes wrote a run folder."""
    if (folder / OLD_DATASET_STATS_FILE).exists():
        raise ValueError(f"{folder} is a run of an earlier version of manyeyes: train it again with this one.")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings of a run; empty if they cannot be read or are damaged."""
    try:
        data = (folder / CONFIG_FILE).read_bytes()
        check_text(folder, CONFIG_FILE, data)
        content = parse_yaml(data.decode())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_last_event(path: Path) -> Event | None:
    """Return the last complete event of a metrics file, which may have thousands; None if there is none."""
    with suppress(OSError):
        for window in TAIL_BYTES:
            reader = TailReader(str(path), window)
            _, lines = reader.read()
            while window is None and (more := reader.read()[1]):
                lines = more
            event = next(filter(None, map(parse_event, reversed(lines))), None)
            if event is not None or reader.is_complete:
                return event
    return None


def read_metrics_checksum(folder: Path) -> tuple[int, int] | None:
    """Return the size and the CRC-32 of the metrics file when the checkpoint was written; None if that is unknown."""
    with suppress(OSError, ValueError, KeyError, TypeError), (folder / CHECKPOINT_FILE).open("rb") as file:
        header_bytes = min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES)
        metadata = parse_json(parse_json(file.read(header_bytes))["__metadata__"]["manyeyes"])
        return int(metadata["metrics_bytes"]), int(metadata["metrics_crc"])
    return None


def parse_event(line: str | bytes) -> Event | None:
    """Return the event of a line of a metrics file; None if the line is damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and type(event.get("round")) is int  # True is an int, but not a round
    return event if is_event and 0 <= event["round"] < MAX_ROUND else None


def finite_numbers(event: Event) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an event by name, without its round."""
    for name, value in event.items():
        if name != "round" and isinstance(value, int | float):
            with suppress(OverflowError):
                if math.isfinite(number := float(value)):
                    yield name, number


def locked_inodes() -> frozenset[int] | None:
    """Return the inodes of the files that processes of this machine hold locks on; None if the system does not say."""
    try:
        inodes = re.findall(r"^\d+: FLOCK .* \w+:\w+:(\d+) ", Path(LOCKS_FILE).read_text(), re.MULTILINE)
    except OSError:
        return None
    return frozenset(map(int, inodes))


def is_locked(lock: Path | str, inodes: frozenset[int] | None) -> bool:
    """Return whether a process has the run; taking the lock to find out could make a run that starts now fail."""
    with suppress(OSError, ValueError):
        if inodes is not None:
            return os.stat(lock, follow_symlinks=False).st_ino in inodes
        os.kill(int(read_small_file(str(lock))), 0)
        return True
    return False


def _modified_time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
