"""Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv:1912.00818), as the Flower baseline.

The baseline prints no numbers; those here are read off its plots.
"""

from collections.abc import Iterator

from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe, cells
from manyeyes.papers.metric import AfterRounds, Final

TOLERANCE = 0.005
SCORE = "user_mean"  # the mean over clients of the accuracy on their own test parts
CIFAR = DatasetRecipe(
    "data/cifar10", ("cifar10", "--raw", "raw/cifar10")
)  # dealt out anew by each run, as its seed decides
FLICKR = DatasetRecipe("data/flickr_aes", ("flickr_aes", "--raw", "raw/flickr_aes", "--size", "224", "--workers", "30"))
MODELS = {"MobileNet-v1": "mobilenet_v1", "ResNet34": "resnet34"}

FIGURE2 = """
model         method  n=4   n=8   n=10
MobileNet-v1  FedPer  .917  .843  .832
MobileNet-v1  FedAvg  .684  .807  .83
ResNet34      FedPer  .891  .806  .719
ResNet34      FedAvg  .672  .769  .797
"""
# Heads of so many layers after 25 rounds at n=4; 0: FedAvg.
FIGURE4 = """
model         layers  score
MobileNet-v1  0       .57
MobileNet-v1  2       .898
MobileNet-v1  3       .886
MobileNet-v1  4       .869
ResNet34      0       .52
ResNet34      1       .854
ResNet34      2       .879
ResNet34      3       .832
"""
FIGURES78 = """
model         FedPer  FedAvg
MobileNet-v1  .398    .312
ResNet34      .502    .363
"""


def _algorithm(head: int, batch: int) -> tuple[str, ...]:
    """FedPer with a head of so many layers, or FedAvg; everyone takes part."""
    return (
        *(("algorithm=fedper", f"algorithm.head_layers={head}") if head else ("algorithm=fedavg",)),
        "sampler=all",
        "algorithm.epochs=4",
        f"algorithm.batch_size={batch}",
        "algorithm.lr=0.01",
        "algorithm.momentum=0.9",
        "evaluate_every=1",
    )


def cifar_run(model: str, classes: int, head: int) -> RunRecipe:
    """CIFAR-10 dealt to 10 clients of so many classes, its images resized to 224 x 224 on the way into the model."""
    whole = ("preprocess.scale=[1,1]", "preprocess.ratio=[1,1]")
    normal = ("preprocess.mean=[0.4915,0.4823,0.4468]", "preprocess.std=[0.2470,0.2435,0.2616]")
    data = (
        "data=cifar10",
        f"data.path={CIFAR.path}",
        "data.repartition.num_clients=10",
        f"data.repartition.classes_per_client={classes}",
    )
    words = (
        *data,
        f"model={MODELS[model]}",
        "model.norm=batch",
        "preprocess.crop=224",
        *whole,
        *normal,
        *_algorithm(head, 128),
        "rounds=50",
    )
    name = f"{MODELS[model]}-{classes}_classes-" + (f"fedper-head_{head}" if head else "fedavg")
    return RunRecipe(name, words, CIFAR)


def flickr_run(model: str, head: int) -> RunRecipe:
    data = ("data=flickr_aes", f"data.path={FLICKR.path}", f"model={MODELS[model]}", "model.norm=batch")
    name = f"{MODELS[model]}-flickr-" + (f"fedper-head_{head}" if head else "fedavg")
    return RunRecipe(name, (*data, *_algorithm(head, 4), "rounds=35"), FLICKR)


def _read(text: str, figure: int, row: str) -> PrintedValue:
    return PrintedValue(float(text), "", f"Figure {figure}, {row}", tolerance=TOLERANCE)


def _figure2() -> Iterator[ExhibitRow]:
    for model, method, *printed in cells(FIGURE2)[1:]:
        for classes, text in zip((4, 8, 10), printed, strict=True):
            row = f"{model}, {method}, n={classes}"
            run = cifar_run(model, classes, 2 if method == "FedPer" else 0)
            yield ExhibitRow(row, (run,), {Final(SCORE): _read(text, 2, row)})


def _figure4() -> Iterator[ExhibitRow]:
    for model, layers, text in cells(FIGURE4)[1:]:
        row = f"{model}, " + (f"FedPer, {layers} layers" if layers != "0" else "FedAvg")
        yield ExhibitRow(row, (cifar_run(model, 4, int(layers)),), {AfterRounds(SCORE, 25): _read(text, 4, row)})


def _flickr(figure: int, wanted: str) -> Iterator[ExhibitRow]:
    for model, *printed in cells(FIGURES78)[1:]:
        for method, text in zip(("FedPer", "FedAvg"), printed, strict=True):
            if model == wanted:
                row = f"{model}, {method}"
                run = flickr_run(model, 2 if method == "FedPer" else 0)
                yield ExhibitRow(row, (run,), {Final(SCORE): _read(text, figure, row)})


PAPER = "fedper"
NOTE = "Numbers are read off the plots of the Flower baseline, whose bugs are not copied. "
WHICH = "The baseline does not say which of figures 7 and 8 has which model. "
ITEMS = (
    Exhibit(
        PAPER,
        "figure2",
        "FedPer and FedAvg on CIFAR-10, 4, 8 or 10 classes a client",
        tuple(_figure2()),
        "In the plots, FedPer is above FedAvg with 4 and 8 classes a client, and with ResNet34 and 10 below it.",
        NOTE,
    ),
    Exhibit(
        PAPER,
        "figure4",
        "Personal heads of 1 to 4 layers on CIFAR-10, 4 classes a client",
        tuple(_figure4()),
        "In the plots, heads of all sizes are within 0.05 of each other and about 0.3 above FedAvg.",
        NOTE,
    ),
    Exhibit(
        PAPER,
        "figure7",
        "FedPer and FedAvg on FLICKR-AES, MobileNet-v1",
        tuple(_flickr(7, "MobileNet-v1")),
        "In the plots, FedPer is above FedAvg.",
        NOTE + WHICH,
    ),
    Exhibit(
        PAPER,
        "figure8",
        "FedPer and FedAvg on FLICKR-AES, ResNet34",
        tuple(_flickr(8, "ResNet34")),
        "In the plots, FedPer is above FedAvg.",
        NOTE + WHICH,
    ),
)
