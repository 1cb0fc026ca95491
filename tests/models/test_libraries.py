"""Models of timm, torchvision and transformers: their heads, sizes, weights and preprocessing, and bad input."""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from manyeyes.components import HeadLayers
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model, weights_input
from manyeyes.models.pretrained import WeightsInput
from tests.conftest import Outcome

VIT = "timm:vit_tiny_patch16_224"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def vit_folder(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small ViT of transformers for 32 px and five classes, as the hub has it."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, num_labels=5
    )
    folder = tmp_path_factory.mktemp("vit")
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, '
    (folder / "preprocessor_config.json").write_text(
        f'{processor}"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]}}'
    )
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client fail at once, as it does without a network after some attempts."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "size"), [(VIT, 48), ("timm:mobilenetv3_small_050", 40), ("torchvision:squeezenet1_1", 40)]
)
def test_a_model_is_built_for_the_classes_and_the_size(name: str, size: int) -> None:
    with torch.no_grad():
        assert build_model(name, 7, size=size)(images(size)).shape == (2, 7)


@pytest.mark.usefixtures("timm")
def test_the_seed_decides_the_weights_and_the_global_generator_stays() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second, third = (build_model("timm:mobilenetv3_small_050", 3, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.get_parameter("conv_stem.weight"), second.get_parameter("conv_stem.weight"))
    assert not torch.equal(first.get_parameter("conv_stem.weight"), third.get_parameter("conv_stem.weight"))


def test_a_file_gives_all_but_a_classifier_of_other_classes(timm: Any, tmp_path: Path) -> None:
    theirs = timm.create_model("mobilenetv3_small_050", num_classes=11).state_dict()
    torch.save(theirs, tmp_path / "w.pth")
    ours = build_model("timm:mobilenetv3_small_050", 3, pretrained=tmp_path / "w.pth").state_dict()
    assert ours["classifier.weight"].shape == (3, theirs["classifier.weight"].shape[1])
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs if not key.startswith("classifier"))


@pytest.mark.slow
def test_weights_for_another_image_size_are_resampled_as_by_timm(timm: Any, tmp_path: Path) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=64)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = build_model(VIT, 3, size=96, pretrained=tmp_path / "w.pth").eval()
    theirs.set_input_size(96)
    with torch.no_grad():
        torch.testing.assert_close(ours(images(96)), theirs.eval()(images(96)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_torchvision_weights_by_file_give_torchvision_outputs(torchvision: Any, tmp_path: Path, name: str) -> None:
    theirs = torchvision.models.get_model(name, num_classes=3).eval()
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = build_model(f"torchvision:{name}", 3, pretrained=tmp_path / "w.pth").eval()
    with torch.no_grad():
        assert torch.equal(ours(images(64)), theirs(images(64)))


def test_a_folder_of_transformers_gives_its_outputs_as_logits(transformers: Any, vit_folder: Path) -> None:
    theirs = transformers.AutoModelForImageClassification.from_pretrained(vit_folder).eval()
    ours = build_model(f"transformers:{vit_folder}", 5, size=32, pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(images(32)), theirs(images(32)).logits, rtol=1e-5, atol=1e-6)


def test_a_folder_of_transformers_has_a_new_classifier_for_other_classes(transformers: Any, vit_folder: Path) -> None:
    theirs = transformers.AutoModelForImageClassification.from_pretrained(vit_folder).state_dict()
    ours = build_model(f"transformers:{vit_folder}", 3, size=32, pretrained=True).state_dict()
    assert ours["model.classifier.weight"].shape == (3, 8)
    assert all(torch.equal(ours[f"model.{key}"], theirs[key]) for key in theirs if not key.startswith("classifier"))


@pytest.mark.parametrize("pretrained", [None, True])
def test_a_model_of_transformers_takes_images_of_another_size(vit_folder: Path, pretrained: bool | None) -> None:
    module = build_model(f"transformers:{vit_folder}", 3, size=48, pretrained=pretrained)
    with torch.no_grad():
        assert module(images(48)).shape == (2, 3)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (VIT, WeightsInput(224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
        ("torchvision:resnet50", WeightsInput(224, *IMAGENET)),
        ("mobilenet_v2", WeightsInput(224, *IMAGENET)),
        ("efficientnet_lite0", WeightsInput(224, (127 / 255,) * 3, (128 / 255,) * 3)),
        ("lenet", None),
    ],
)
def test_weights_say_which_images_they_expect(name: str, expected: WeightsInput | None) -> None:
    assert weights_input({"name": name, "pretrained": True}) == expected
    assert weights_input({"name": name, "pretrained": None}) is None


def test_a_folder_of_transformers_says_which_images_it_expects(vit_folder: Path) -> None:
    expected = WeightsInput(32, (0.1, 0.2, 0.3), (1, 2, 3))
    assert weights_input({"name": f"transformers:{vit_folder}", "pretrained": True}) == expected


def test_preprocessing_takes_from_the_weights_what_is_not_set() -> None:
    expected = WeightsInput(96, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    unset = Preprocess().for_weights(expected)
    assert (unset.crop, unset.scale, unset.mean, unset.std) == (96, (1, 1), expected.mean, expected.std)
    given = Preprocess(crop=0, mean=(0.5, 0.5, 0.5)).for_weights(expected)
    assert (given.crop, given.scale, given.mean, given.std) == (0, None, (0.5, 0.5, 0.5), expected.std)
    assert Preprocess().for_weights(None) == Preprocess(crop=0, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def test_small_images_are_enlarged_as_a_whole_to_the_size_of_the_weights() -> None:
    preprocess = Preprocess().for_weights(WeightsInput(12, (0.5, 0.5, 0.5), (1, 1, 1)))
    pixels = torch.randint(0, 256, (2, 6, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(2, preprocess.num_uniforms, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(preprocess.augment(pixels, uniforms), preprocess.evaluate(pixels), rtol=0, atol=1e-5)


HEADS = [
    ("timm:resnet18", ["fc", "layer4.1", "layer4.0", "layer3.1"]),
    (VIT, ["head", "blocks.11", "blocks.10"]),
    ("timm:mobilenetv3_small_050", ["classifier", "conv_head", "blocks.5.0", "blocks.4.2"]),
    ("timm:convnext_atto", ["head", "stages.3.blocks.1", "stages.3.blocks.0"]),
    ("torchvision:mobilenet_v3_small", ["classifier.3", "classifier.0", "features.12", "features.11"]),
    ("torchvision:densenet121", ["classifier", "features.denseblock4.denselayer16"]),
]


@pytest.mark.fast_cases("mobilenetv3_small_050", "vit")
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(("name", "blocks"), HEADS)
def test_a_head_has_the_last_blocks_of_the_models_own_structure(name: str, blocks: list[str]) -> None:
    module = build_model(name, 3, size=64)
    norms = {"blocks.11": ["norm."], "features.denseblock4.denselayer16": ["features.norm5."]}  # that follow a block
    prefixes: list[str] = []
    for count, block in enumerate(blocks, 1):
        prefixes += [f"{block}.", *norms.get(block, [])]
        expected = {key for key in module.state_dict() if key.startswith(tuple(prefixes))}
        assert HeadLayers(count).parameter_names(module) == expected


def test_the_last_blocks_of_transformers_are_a_head(vit_folder: Path) -> None:
    module = build_model(f"transformers:{vit_folder}", 3, size=32, trainable="head:2")
    trained = {name.rpartition(".")[0] for name, p in module.named_parameters() if p.requires_grad}
    assert {"model.classifier", "model.vit.layernorm"} < trained
    assert all(name.startswith(("model.classifier", "model.vit.layernorm", "model.vit.layers.1")) for name in trained)


def test_the_head_of_an_imported_model_is_replaced(torchvision: Any) -> None:
    module = build_model("torchvision.models:squeezenet1_1", 4)
    assert [layer.out_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)][-1] == 4


RUN = ("run", "data.users=20", "data.images_per_user=4", "rounds=1", "folder=out")


@pytest.mark.slow
@pytest.mark.usefixtures("timm", "offline")
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("model=timm:resnet19", "model=timm:resnet19 is not a model of timm"),
        ("model=timm:resnet18.foo", r"Invalid pretrained tag \(foo\) for resnet18"),
        ("model=timm:resnet18 model.pretrained=true", "model=timm:resnet18 cannot be built"),
        ("model=torchvision:resnet19", "is not a model of torchvision .did you mean 'resnet1"),
        ("model=transformers:no/such-model", "model=transformers:no/such-model cannot be built"),
        ("model=transformers:nowhere model.pretrained=true", "model=transformers:nowhere cannot be built"),
        ("model=timm:mobilenetv3_small_050 model.pretrained=w.safetensors", r"weights w.safetensors have"),
        ("model=timm:mobilenetv3_small_050 model.adapter=lora model.adapter.targets=[nothing]", "'nothing' matches no"),
        ("model=timm:mobilenetv3_small_050 model.norm=layer", "model.norm is 'layer'"),
        ("model=timm:mobilenetv3_small_050 model.width=3", "model.width"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    command: Callable[..., Outcome], tmp_path: Path, overrides: str, sentence: str
) -> None:
    save_file({"conv_stem.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    outcome = command(*RUN, *overrides.split())
    assert outcome.code == 2
    assert re.search(sentence, outcome.err), outcome.err
    assert outcome.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., Outcome], tmp_path: Path, library: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *args: None)
    outcome = command(*RUN, f"model={library}:vit")
    assert (outcome.code, list(tmp_path.iterdir())) == (2, [])
    assert outcome.err.startswith(f"manyeyes: {library} is not installed: run pip install '{library}>=")


@pytest.mark.slow
@pytest.mark.usefixtures("timm")
def test_a_run_from_the_command_line_records_the_model_and_resumes(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    options = "model=timm:mobilenetv3_small_050 model.adapter=lora model.adapter.rank=2 engine=reference"
    assert command(*RUN, *options.split(), "algorithm.cohort_size=2").code == 0
    assert command("run", "resume=out", "rounds=2").code == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
