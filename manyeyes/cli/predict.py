"""`manyeyes predict`: predict the classes of photos with a trained model."""

import json
from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.report.table import Table
from manyeyes.report.text import format_value
from manyeyes.training.run_files import with_caveats
from manyeyes.training.trained_model import load_model


def main(argv: list[str]) -> int:
    example = "manyeyes predict runs/first photo1.jpg photo2.png --top 3"
    description = "The most probable classes of photos, by a trained model."
    parser = Parser("manyeyes predict", description=description, example=example)
    parser.add_argument("run", type=Path, help="run folder, or a model.safetensors")
    parser.add_argument("photos", type=Path, nargs="+", help="image files")
    parser.add_argument("--user", help="use the personal model of this user of the run")
    parser.add_argument("--top", type=int, default=5, help="classes that are printed (5)")
    parser.add_argument("--json", action="store_true", help="print JSON: the labels and probabilities of each photo")
    args = parser.parse_args(argv)
    if args.top < 1:
        raise ValueError(f"--top is {args.top}: give at least 1")
    model = load_model(args.run, args.user)
    predictions = model.predict(args.photos)
    if args.json:
        rows = [
            {"photo": str(photo), "labels": prediction.labels, "probabilities": prediction.top(args.top)}
            for photo, prediction in zip(args.photos, predictions, strict=True)
        ]
        print(json.dumps({"caveats": model.info.caveats, "predictions": rows}, indent=1))
        return 0
    cells = []
    for photo, prediction in zip(args.photos, predictions, strict=True):
        for rank, (label, probability) in enumerate(prediction.top(args.top).items()):
            cells.append(["" if rank else str(photo), label, format_value(probability, percent=True)])
    title = with_caveats("Predictions", model.info.caveats)
    print(Table(title, ("photo", "class", "probability"), cells).terminal())
    return 0
