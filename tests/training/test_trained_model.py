"""Trained models that are loaded again: the same predictions, for arrays and files, shared and personal."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import manyeyes as me
from manyeyes.cli import main
from manyeyes.components import HeadLayers
from manyeyes.core.algorithm import Algorithm
from manyeyes.io.tensors import read_tensors, write_tensors
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result

POPULATION = me.make_synthetic(me.SyntheticImages(users=16, images_per_user=6, size=32, coarse=3, fine=6))
IMAGES = POPULATION.pixels(np.arange(4))
FEDAVG = me.fedavg(cohort_size=4, batch_size=4, lr=0.05)


def train(folder: Path, algorithm: Algorithm = FEDAVG, model: str | nn.Module = "linear") -> Result:
    return me.train(POPULATION, model, algorithm, rounds=1, folder=folder, progress=False)


def test_a_loaded_model_predicts_as_the_result_does(tmp_path: Path) -> None:
    result = train(tmp_path / "run")
    predictions = me.load_model(tmp_path / "run").predict(IMAGES)
    assert predictions == result.predict(IMAGES)
    logits = result.model.eval()((torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25)
    expected = logits.softmax(1).detach().numpy()
    predicted = [[prediction.probabilities[name] for name in POPULATION.classes] for prediction in predictions]
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    assert [prediction.labels for prediction in predictions] == [(POPULATION.classes[c],) for c in expected.argmax(1)]


def test_the_file_alone_is_enough(tmp_path: Path) -> None:
    train(tmp_path / "run")
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((tmp_path / "run" / "model.safetensors").read_bytes())
    assert me.load_model(alone).predict(IMAGES) == me.load_model(tmp_path / "run").predict(IMAGES)


def test_a_photo_is_resized_as_the_dataset_was(tmp_path: Path) -> None:
    train(tmp_path / "run")
    photo = Image.fromarray(IMAGES[0]).resize((50, 40))
    photo.save(tmp_path / "photo.png")
    model = me.load_model(tmp_path / "run")
    resized = np.asarray(photo.resize((32, 32), Image.Resampling.LANCZOS))
    assert model.predict(tmp_path / "photo.png") == model.predict(photo) == model.predict(resized)


class GreyModel(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(1024, 8))


def test_a_model_of_grey_images_sees_a_photo_in_grey(tmp_path: Path) -> None:
    arrays = {"image": IMAGES[..., :1].repeat(2, 0), "label": np.arange(8)}
    population = me.Population.from_dataset(arrays, user=np.arange(8) % 2, channels=1)
    me.train(population, GreyModel(), me.fedavg(cohort_size=2), rounds=1, folder=tmp_path / "run", progress=False)
    model = me.load_model(tmp_path / "run", model=GreyModel())
    photo = Image.fromarray(IMAGES[0]).resize((50, 40))
    photo.save(tmp_path / "photo.png")
    grey = np.asarray(photo.resize((32, 32), Image.Resampling.LANCZOS).convert("L"))[..., None]
    with_photo, with_grey = model.predict(tmp_path / "photo.png")[0], model.predict(grey)[0]
    for name, probability in with_grey.probabilities.items():
        assert with_photo.probabilities[name] == pytest.approx(probability, abs=2e-3)  # luminances are rounded
    logits = model.module((torch.from_numpy(grey)[None].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25)
    expected = dict(zip(population.classes, logits.softmax(1)[0].tolist(), strict=True))
    assert with_grey.probabilities == pytest.approx(expected, rel=1e-5)


def test_several_labels_are_those_above_one_half(tmp_path: Path) -> None:
    labels = me.MultiLabels.from_lists([[0, 1]] * len(POPULATION), POPULATION.classes)
    population = replace(POPULATION, labels=labels)
    result = me.train(population, "linear", me.fedavg(cohort_size=4, batch_size=4, lr=0.1), rounds=5, progress=False)
    for prediction in result.predict(IMAGES):
        assert prediction.labels == tuple(name for name, p in prediction.probabilities.items() if p > 0.5)
    assert set(result.predict(IMAGES)[0].labels) == set(POPULATION.classes[:2])


@pytest.mark.slow
def test_a_users_model_has_its_own_head_on_the_shared_layers(tmp_path: Path) -> None:
    train(tmp_path / "run", me.fedper(cohort_size=12, batch_size=4), "lenet")
    shared = FlatModel(me.load_model(tmp_path / "run").module)
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    user = next(iter(clients))
    own = FlatModel(me.load_model(tmp_path / "run", user).module)
    head = shared.mask(HeadLayers(2).parameter_names(shared.module).__contains__)
    assert torch.equal(own.read()[~head], shared.read()[~head])
    assert not torch.equal(own.read()[head], shared.read()[head])
    with pytest.raises(ValueError, match=f"user 'unknown' is not in .*: give one of its users, such as {user}"):
        me.load_model(tmp_path / "run", "unknown")


def test_a_module_of_python_is_passed_again(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3))
    train(tmp_path / "run", model=module)
    with pytest.raises(ValueError, match=r"was trained as a module of class torch.*container:Sequential: pass model="):
        me.load_model(tmp_path / "run")
    assert me.load_model(tmp_path / "run", model=module).predict(IMAGES[0])
    with pytest.raises(ValueError, match="does not fit the model"):
        me.load_model(tmp_path / "run", model="lenet")


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run")
    tensors, _, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    write_tensors(tmp_path / "other.safetensors", tensors)
    with pytest.raises(ValueError, match=r"other\.safetensors does not say how it is used"):
        me.load_model(tmp_path / "other.safetensors")


def test_the_command_prints_the_labels_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(tmp_path / "run")
    Image.fromarray(IMAGES[0]).save(tmp_path / "photo.png")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "photo.png"), "--json", "--top", "1"]) == 0
    content = json.loads(capsys.readouterr().out)
    (expected,) = result.predict(IMAGES[:1])
    row = {"photo": str(tmp_path / "photo.png"), "labels": [*expected.labels], "probabilities": expected.top(1)}
    assert content == {"caveats": ["synthetic images"], "predictions": [row]}


def test_a_photo_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run")
    (tmp_path / "photo.jpg").write_text("not a photo")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "photo.jpg")]) == 2
    message = "photo.jpg cannot be read as an image (not an image): give a photo."
    assert capsys.readouterr().err == f"manyeyes: {tmp_path}/{message}\n"
