"""Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv:1912.00818), as the Flower baseline.

The baseline prints no numbers; those here are read off its plots.
"""

from collections.abc import Iterator

from manyeyes.papers.exhibit import DatasetRecipe, ExhibitRow, PrintedValue, RunRecipe, make_run
from manyeyes.papers.metric import AfterRounds
from manyeyes.papers.printed import make_exhibits, printed_table

READING_ERROR = 0.005
METRIC = "user_mean"  # the mean over clients of the accuracy on their own test examples
CIFAR = DatasetRecipe("data/cifar10", ("cifar10", "--raw", "raw/cifar10"))  # each run partitions it by its seed
FLICKR = DatasetRecipe("data/flickr_aes", ("flickr_aes", "--raw", "raw/flickr_aes", "--size", "224", "--raters", "30"))
MODELS = {"MobileNet-v1": "mobilenet_v1", "ResNet34": "resnet34"}
HEAD_LAYERS = {"FedPer": 2, "FedAvg": 0}


def cifar_run(model: str, classes: int, head_layers: int) -> RunRecipe:
    """Return a run on CIFAR-10 among 10 clients with this many classes each, its images resized to 224 x 224."""
    settings = f"""
        partitioner=classes partitioner.num_clients=10 partitioner.classes_per_client={classes}
        model={MODELS[model]} model.norm=live
        preprocess.crop=224 preprocess.scale=[1,1] preprocess.ratio=[1,1]
        preprocess.mean=[0.4915,0.4823,0.4468] preprocess.std=[0.2470,0.2435,0.2616]
        {_algorithm(head_layers, batch_size=128)} rounds=50
    """
    return make_run(f"{MODELS[model]}-{classes}_classes-{_method_name(head_layers)}", CIFAR, settings)


def flickr_run(model: str, head_layers: int) -> RunRecipe:
    settings = f"model={MODELS[model]} model.norm=live {_algorithm(head_layers, batch_size=4)} rounds=35"
    return make_run(f"{MODELS[model]}-flickr-{_method_name(head_layers)}", FLICKR, settings)


def _algorithm(head_layers: int, batch_size: int) -> str:
    """Return FedPer with a head of this many layers, or (0) FedAvg; all clients take part in every round."""
    algorithm = f"algorithm=fedper algorithm.head_layers={head_layers}" if head_layers else "algorithm=fedavg"
    local = f"algorithm.epochs=4 algorithm.batch_size={batch_size} algorithm.lr=0.01 algorithm.momentum=0.9"
    return f"{algorithm} sampler=all {local} evaluate_every=1"


def _method_name(head_layers: int) -> str:
    return f"fedper-head_{head_layers}" if head_layers else "fedavg"


def _printed(text: str, figure: int, row: str) -> PrintedValue:
    return PrintedValue(float(text), "", f"Figure {figure}, {row}", reading_error=READING_ERROR)


def _figure2() -> Iterator[ExhibitRow]:
    for model, method, *printed in printed_table("fedper", "figure2")[1:]:
        for classes, text in zip((4, 8, 10), printed, strict=True):
            row = f"{model}, {method}, n={classes}"
            run = cifar_run(model, classes, HEAD_LAYERS[method])
            yield ExhibitRow(row, (run,), {AfterRounds(METRIC): _printed(text, 2, row)})


def _figure4() -> Iterator[ExhibitRow]:
    for model, layers, text in printed_table("fedper", "figure4")[1:]:
        row = f"{model}, " + (f"FedPer, {layers} layers" if layers != "0" else "FedAvg")
        yield ExhibitRow(row, (cifar_run(model, 4, int(layers)),), {AfterRounds(METRIC, 25): _printed(text, 4, row)})


def _flickr(figure: int) -> Iterator[ExhibitRow]:
    for model, method, text in printed_table("fedper", f"figure{figure}")[1:]:
        row, run = f"{model}, {method}", flickr_run(model, HEAD_LAYERS[method])
        yield ExhibitRow(row, (run,), {AfterRounds(METRIC): _printed(text, figure, row)})


ROWS = {"figure2": _figure2(), "figure4": _figure4(), "figure7": _flickr(7), "figure8": _flickr(8)}
EXHIBITS = make_exhibits("fedper", ROWS)
