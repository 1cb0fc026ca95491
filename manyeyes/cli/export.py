"""`manyeyes export`: a trained model as files for other programs, with a model card."""

from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.deploy.card import model_card
from manyeyes.deploy.formats import FORMATS
from manyeyes.deploy.hub import push
from manyeyes.io.files import make_folder, write_text
from manyeyes.training.trained_model import load_model, write_model

CARD_FILE = "README.md"
HELP = {
    "onnx": "for ONNX Runtime and others; uint8 images [B, height, width, channels] in, probabilities out",
    "torchscript": "for PyTorch in C++ and on phones, with the same input and output",
    "state-dict": "the weights alone, for torch.load",
}


def main(argv: list[str]) -> int:
    """Write the formats that were asked for into one folder, each checked against the model."""
    description = "Files of a trained model for other programs, and its model card."
    parser = Parser("manyeyes export", description=description, example="manyeyes export runs/first --onnx")
    parser.add_argument("run", type=Path, help="run folder")
    for name in FORMATS:
        parser.add_argument(f"--{name}", action="store_true", help=HELP[name])
    parser.add_argument("--user", help="export the personal model of this user of the run")
    parser.add_argument("--out", type=Path, help="folder for the files (RUN/export)")
    parser.add_argument("--push", metavar="REPO", help="upload the folder to the Hugging Face hub, as a private model")
    args = parser.parse_args(argv)
    if not args.run.is_dir():
        raise ValueError(f"{args.run} is not a folder: give the folder of a finished run.")
    model = load_model(args.run, args.user)
    card = model_card(args.run, model, args.user)
    out = args.out or args.run / "export"
    make_folder(out)
    for name, (file, export) in FORMATS.items():
        if getattr(args, name.replace("-", "_")):
            export(model, out / file)
            print(out / file)
    write_model(out / "model.safetensors", model.module, model.info)
    write_text(out / CARD_FILE, card)
    print(f"{out / 'model.safetensors'}\n{out / CARD_FILE}")
    if args.push:
        print(push(out, args.push))
    return 0
