"""The sentence about a missing package."""

import sys

import pytest
import torch

from manyeyes.io.packages import describe_missing, install_command


def test_all_missing_packages_of_an_extra_that_is_used_as_a_whole_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "dp_accounting"):
        monkeypatch.setitem(sys.modules, name, None)
    command = "pip install 'scipy>=1.11' 'dp-accounting>=0.6'"
    assert describe_missing("scipy") == f"scipy and dp_accounting are not installed: run {command}"


def test_one_of_several_trackers_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert describe_missing("wandb") == "wandb is not installed: run pip install 'wandb>=0.19'"


def test_installing_timm_keeps_pytorch() -> None:
    assert install_command("timm") == f"pip install 'timm>=1.0' 'torch=={torch.__version__.partition('+')[0]}'"
