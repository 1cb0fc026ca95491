"""`manyeyes flower`: write a Flower app with a run's settings, stores to try it with, and keys for its connections."""

import shlex
from argparse import BooleanOptionalAction, Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from manyeyes.cli.parser import Parser
from manyeyes.config.build import build_population, privacy_notes
from manyeyes.flower.app import FederationConfig, write_app
from manyeyes.flower.keys import make_keys
from manyeyes.flower.split import split
from manyeyes.flower.training_spec import parse_settings

DEFAULT_HOSTS = ("localhost", "127.0.0.1")
EXAMPLE = "manyeyes flower init app algorithm=fedavgm rounds=20"
OPTIONS = tuple(field for field in fields(FederationConfig) if field.name not in ("settings", "resume"))


def main(argv: list[str]) -> int:
    settings = [word for word in argv if "=" in word and not word.startswith("-")]
    args = _parser().parse_args([word for word in argv if word not in settings], Namespace(settings=settings))
    return {"init": _init, "split": _split, "keys": _keys}[args.action](args)


def _parser() -> Parser:
    parser = Parser(
        "manyeyes flower", description="Federated training on separate clients, with Flower.", example=EXAMPLE
    )
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    init = actions.add_parser("init", help="write a Flower app that trains with these settings", example=EXAMPLE)
    init.usage = "%(prog)s FOLDER [SETTING=VALUE ...] [options]"
    init.description = "Write a Flower app; its settings are those of manyeyes run: algorithm=fedvc rounds=20 ..."
    init.add_argument("app", type=Path, help="the folder of the app")
    for field in OPTIONS:
        flag, help = "--" + field.name.replace("_", "-"), f"{field.metadata['help']} (%(default)s)"
        kind: dict[str, Any] = {"type": type(field.default)}
        if isinstance(field.default, bool):
            kind = {"action": BooleanOptionalAction}
        init.add_argument(flag, dest=field.name, default=field.default, help=help, **kind)
    help, example = "write a store for each user of a population, to try a federation", "manyeyes flower split nodes"
    stores = actions.add_parser("split", help=help, example=example)
    stores.usage = "%(prog)s FOLDER [SETTING=VALUE ...] [--users N]"
    stores.description = "Write a store for each user; settings are those of manyeyes run: data=store data.path=..."
    stores.add_argument("folder", type=Path, help="the folder of the stores")
    stores.add_argument("--users", type=int, default=0, help="at most this many; 0: all (%(default)s)")
    help, example = "make certificates for TLS, and a key for each client", "manyeyes flower keys keys --clients 5"
    keys = actions.add_parser("keys", help=help, example=example)
    keys.add_argument("folder", type=Path, help="the folder of the keys")
    keys.add_argument("--clients", type=int, default=3, help="number of client keys (%(default)s)")
    hosts = ", ".join(DEFAULT_HOSTS)
    keys.add_argument("--host", action="append", help=f"a name or address of the SuperLink; may be repeated ({hosts})")
    return parser


def _init(args: Namespace) -> int:
    options = {field.name: getattr(args, field.name) for field in OPTIONS}
    config = FederationConfig(settings=shlex.join(args.settings), **options)
    spec = parse_settings(config.settings)  # refuses what cannot be federated, before anything is written
    write_app(args.app, config)
    for note in privacy_notes(spec.config):
        print(note)
    print(f"{args.app}: a Flower app. Run it with: flwr run {args.app}")
    return 0


def _split(args: Namespace) -> int:
    config = parse_settings(shlex.join(args.settings)).config
    paths = split(build_population(config), args.folder, config.data.task, args.users)
    print(f"{args.folder}: {len(paths)} stores. Start a node with --node-config 'store=\"{paths[0]}\"'")
    return 0


def _keys(args: Namespace) -> int:
    hosts = tuple(args.host or DEFAULT_HOSTS)
    make_keys(args.folder, args.clients, hosts)
    print(f"{args.folder}: ca.crt, server.crt and server.key for {', '.join(hosts)}; {args.clients} client keys")
    return 0
