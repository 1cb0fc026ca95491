"""Exported models: ONNX and TorchScript files agree with the module in other programs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import manyeyes as me
from manyeyes.cli import main
from manyeyes.components import PoissonSampler, WeightUniformly
from manyeyes.deploy import formats
from manyeyes.deploy.card import model_card
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.trained_model import load_model

pytestmark = pytest.mark.slow
POPULATION = me.make_synthetic(me.SyntheticImages(users=16, images_per_user=6, size=32, coarse=3, fine=6))
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    me.train(POPULATION, "lenet", me.fedavg(cohort_size=4, batch_size=4), rounds=1, folder=folder, progress=False)
    return folder


def reference(folder: Path) -> torch.Tensor:
    """Return the probabilities, computed from the state dict without the code of exports."""
    model = load_model(folder)
    pixels = (torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        return torch.as_tensor(model.module(pixels).softmax(1))


def test_onnx_runtime_gives_the_probabilities_of_the_module(run_folder: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    formats.export_onnx(load_model(run_folder), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"images": IMAGES})
    np.testing.assert_allclose(probabilities, reference(run_folder), atol=1e-4)
    classes = '["{}"]'.format('", "'.join(POPULATION.classes))
    assert session.get_modelmeta().custom_metadata_map["classes"] == classes


def test_torchscript_gives_the_probabilities_of_the_module(run_folder: Path, tmp_path: Path) -> None:
    formats.export_torchscript(load_model(run_folder), tmp_path / "model.pt")
    probabilities = torch.jit.load(tmp_path / "model.pt")(torch.from_numpy(IMAGES))
    torch.testing.assert_close(probabilities, reference(run_folder), atol=1e-4, rtol=0)


def test_a_model_of_grey_images_is_exported(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 4))
    arrays = {"image": IMAGES[:4, ..., :1], "label": np.arange(4)}
    population = me.Population.from_dataset(arrays, user=np.arange(4) % 2, channels=1)
    me.train(population, module, me.fedavg(cohort_size=2), rounds=1, folder=tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run", model=module)
    formats.export_torchscript(model, tmp_path / "model.pt")
    probabilities = torch.jit.load(tmp_path / "model.pt")(torch.from_numpy(IMAGES[..., :1]))
    pixels = (torch.from_numpy(IMAGES[..., 0]).flatten(1).float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(probabilities, model.module[1](pixels).softmax(1), atol=1e-4, rtol=0)  # type: ignore[index]
    formats.export_onnx(model, tmp_path / "model.onnx")  # which checks it


def test_an_exported_model_that_differs_is_refused(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(run_folder)
    monkeypatch.setattr(torch.jit, "trace", lambda module, images: lambda images: module(images) + 0.01)
    with pytest.raises(ValueError, match=r"TorchScript model differs from the module by 0\.01: choose another format"):
        formats.export_torchscript(model, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


def test_the_command_writes_every_format_and_a_card(run_folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(run_folder), "--torchscript", "--state-dict", "--out", str(tmp_path / "out")]) == 0
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"model.pt", "model.pth", "model.safetensors", "README.md"}
    weights = torch.load(tmp_path / "out" / "model.pth", weights_only=True)
    assert weights.keys() == load_model(tmp_path / "out" / "model.safetensors").module.state_dict().keys()


def test_the_card_says_what_the_metrics_are_worth(run_folder: Path) -> None:
    model = load_model(run_folder)
    card = model_card(run_folder, model)
    front = yaml.safe_load(card.split("---")[1])
    (result,) = front["model-index"][0]["results"]
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values["accuracy"] == round(model.info.metrics["accuracy"], 4)
    assert result["dataset"]["name"] == "custom (synthetic images)"
    assert "**Not a result on real data**: synthetic images." in card
    assert "Trained without differential privacy" in card


def test_the_card_of_a_private_model_has_its_guarantee(tmp_path: Path) -> None:
    private = replace(
        me.fedavg(batch_size=4),
        sampler=PoissonSampler(4),
        client_weighting=WeightUniformly(),
        privacy=CentralDP(noise_multiplier=1.0),
    )
    result = me.train(POPULATION, "lenet", private, rounds=1, folder=tmp_path / "run", progress=False)
    card = model_card(tmp_path / "run", load_model(tmp_path / "run"))
    assert f"epsilon spent: {result.events[-1]['epsilon']:.4g}." in card
    assert "differential-privacy" in card
