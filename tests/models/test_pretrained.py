"""Pretrained weights: what is loaded, what is replaced, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from manyeyes.models import build_model, load_pretrained

State = dict[str, Tensor]


def save(state: State, path: Path) -> Path:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def trained(name: str = "resnet18", classes: int = 1000, norm: str = "live", **options: Any) -> State:
    """Return weights as after training: no norm is at its initial value."""
    state = build_model(name, classes, norm=norm, seed=9, **options).state_dict()
    return {key: value + 1 if value.dim() < 2 else value for key, value in state.items()}


def copy_of_state(module: nn.Module) -> State:
    return {key: value.clone() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_all_weights_of_a_file_are_loaded(tmp_path: Path, suffix: str) -> None:
    state = trained("lenet", 10)
    model = build_model("lenet", 10)
    report = load_pretrained(model, save(state, tmp_path / f"w{suffix}"))
    assert (set(report.loaded), report.replaced, report.ignored) == (set(state), (), ())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_classifier_of_other_classes_stays_new_and_the_rest_is_loaded(tmp_path: Path, suffix: str) -> None:
    state = trained()
    model, new = build_model("resnet18", 17, norm="frozen"), build_model("resnet18", 17, norm="frozen")
    report = load_pretrained(model, save(state, tmp_path / f"w{suffix}"))
    assert report.replaced == ("fc.weight", "fc.bias")
    assert torch.equal(model.get_parameter("fc.weight"), new.get_parameter("fc.weight"))
    assert all(torch.equal(model.state_dict()[key], state[key]) for key in report.loaded)
    assert len(report.loaded) == 100


def test_frozen_norms_ignore_only_the_counters(tmp_path: Path) -> None:
    report = load_pretrained(build_model("resnet18", 1000, norm="frozen"), save(trained(), tmp_path / "w.pth"))
    assert len(report.ignored) == 20
    assert all(key.endswith("num_batches_tracked") for key in report.ignored)


@pytest.mark.slow
def test_frozen_model_with_batch_norm_weights_is_the_same_function(tmp_path: Path) -> None:
    state = trained()
    batch = build_model("resnet18", 1000, norm="live").eval()
    batch.load_state_dict(state)
    frozen = build_model("resnet18", 1000, norm="frozen", pretrained=save(state, tmp_path / "w.pth")).train()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(frozen(x), batch(x))


def test_group_norms_load_scale_and_bias_and_ignore_the_statistics(tmp_path: Path) -> None:
    state = trained("mobilenet_v2")
    model = build_model("mobilenet_v2", 1000, norm="group")
    report = load_pretrained(model, save(state, tmp_path / "w.pth"))
    assert torch.equal(model.get_parameter("features.5.conv.3.bias"), state["features.5.conv.3.bias"])
    assert len(report.ignored) == 3 * 52
    assert "features.0.1.running_mean" in report.ignored


def test_a_new_bottleneck_and_its_classifier_stay_new_even_with_the_same_classes(tmp_path: Path) -> None:
    model = build_model("mobilenet_v2", 1000, bottleneck=64)
    report = load_pretrained(model, save(trained("mobilenet_v2"), tmp_path / "w.pth"))
    assert report.replaced == ("bottleneck.weight", "bottleneck.bias", "classifier.1.weight", "classifier.1.bias")
    assert not model.get_parameter("classifier.1.bias").any()


def test_a_bottleneck_in_the_file_is_loaded_and_only_the_classifier_replaced(tmp_path: Path) -> None:
    path = save(trained("mobilenet_v2", 2028, bottleneck=64), tmp_path / "w.pth")
    report = load_pretrained(build_model("mobilenet_v2", 203, bottleneck=64), path)
    assert report.replaced == ("classifier.1.weight", "classifier.1.bias")


def with_a_wrong_shape(state: State) -> State:
    return {**state, "conv2.weight": torch.zeros(64, 64, 3, 3)}


def without_a_bias(state: State) -> State:
    return {key: value for key, value in state.items() if key != "fc1.bias"}


def without_a_classifier(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith("fc3")}


def test_weights_without_a_classifier_leave_it_new(tmp_path: Path) -> None:
    state = without_a_classifier(trained("lenet", 10))
    report = load_pretrained(build_model("lenet", 10), save(state, tmp_path / "w.pth"))
    assert (set(report.loaded), report.replaced) == (set(state), ("fc3.weight", "fc3.bias"))


def test_weights_with_half_a_classifier_are_refused(tmp_path: Path) -> None:
    state = {key: value for key, value in trained("lenet", 10).items() if key != "fc3.bias"}
    with pytest.raises(ValueError, match=r"have no 'fc3\.bias'"):
        load_pretrained(build_model("lenet", 10), save(state, tmp_path / "w.pth"))


def with_an_extra_layer(state: State) -> State:
    return {**state, "fc4.weight": torch.zeros(2)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (with_a_wrong_shape, r"'conv2.weight' of shape \(64, 64, 3, 3\) and the model \(64, 64, 5, 5\)"),
        (without_a_bias, "have no 'fc1.bias'"),
        (with_an_extra_layer, "have 'fc4.weight' and the model does not"),
    ],
)
def test_a_mismatched_key_is_named_and_nothing_is_loaded(
    tmp_path: Path, change: Callable[[State], State], sentence: str
) -> None:
    model = build_model("lenet", 10)
    before = copy_of_state(model)
    with pytest.raises(ValueError, match=sentence):
        load_pretrained(model, save(change(trained("lenet", 10)), tmp_path / "w.pth"))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
def test_weights_of_a_deeper_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'layer1\.2\.conv1\.weight' and the model does not"):
        load_pretrained(build_model("resnet18", 10), save(trained("resnet34", 10, "group"), tmp_path / "w.pth"))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_truncated_file_is_refused_in_one_sentence(tmp_path: Path, suffix: str, fraction: float) -> None:
    path = save(trained("lenet", 10), tmp_path / f"w{suffix}")
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(ValueError, match=f"w{suffix} cannot be read .*truncated") as error:
        load_pretrained(build_model("lenet", 10), path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "description"),
    [
        ({"state_dict": {"w": torch.zeros(1)}, "epoch": 3}, "a dict of 'state_dict', 'epoch'"),
        ({0: torch.zeros(1)}, "a dict of 0"),
        ({}, "a dict of nothing"),
        ([torch.zeros(1)], "list"),
    ],
)
def test_file_of_something_else_is_refused(tmp_path: Path, content: object, description: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=f"have {description} and no state dict"):
        load_pretrained(build_model("lenet", 10), tmp_path / "w.pth")


def test_pickled_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save(nn.ReLU(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match="has more than tensors"):
        load_pretrained(build_model("lenet", 10), tmp_path / "w.pth")


@pytest.mark.parametrize(("name", "sentence"), [("no.pth", "does not exist"), ("imagenet21k", "a URL or 'imagenet'")])
def test_missing_file_and_unknown_name_are_refused(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_pretrained(build_model("lenet", 10), tmp_path / name)


def test_imagenet_is_refused_for_models_without_published_weights() -> None:
    with pytest.raises(
        ValueError, match="'imagenet', which has no weights for LeNet, only for resnet18, resnet34, mobilenet_v2"
    ):
        load_pretrained(build_model("lenet", 10), "imagenet")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder as torch.hub's, so that the user's own is neither read nor changed."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "home" / "hub" / "checkpoints"


def published(folder: Path, digest: str = "") -> str:
    """Return a file:// URL of LeNet weights, named by their hash unless another is given."""
    path = save(trained("lenet", 10), folder / "w.pth")
    digest = digest or hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / f"lenet-{digest}.pth").as_uri()


def test_url_with_the_right_hash_loads(tmp_path: Path, hub: Path) -> None:
    assert len(load_pretrained(build_model("lenet", 10), published(tmp_path)).loaded) == 10


def test_url_with_a_wrong_hash_is_refused_and_not_kept(tmp_path: Path, hub: Path) -> None:
    with pytest.raises(
        ValueError, match=r'could not be downloaded \(invalid hash value \(expected "00000000"'
    ) as error:
        load_pretrained(build_model("lenet", 10), published(tmp_path, "00000000"))
    assert "\n" not in str(error.value)
    assert not list(hub.iterdir())


def test_url_without_a_hash_is_refused(tmp_path: Path, hub: Path) -> None:
    with pytest.raises(ValueError, match="does not end in a hash"):
        load_pretrained(build_model("lenet", 10), (tmp_path / "model.pth").as_uri())


def test_url_of_a_missing_file_is_refused(tmp_path: Path, hub: Path) -> None:
    with pytest.raises(ValueError, match="could not be downloaded"):
        load_pretrained(build_model("lenet", 10), (tmp_path / "lenet-01234567.pth").as_uri())


def test_broken_copy_of_a_download_is_named_for_deletion(tmp_path: Path, hub: Path) -> None:
    hub.mkdir(parents=True)
    (hub / "lenet-01234567.pth").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"lenet-01234567\.pth of https.* is broken: delete it"):
        load_pretrained(build_model("lenet", 10), "https://127.0.0.1:9/lenet-01234567.pth")
