"""`manyeyes federate`: a Flower app with a run's settings, stores to try it with, and keys for its connections."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.config.build import build_population
from manyeyes.flower.config import FederationConfig, parse_settings
from manyeyes.flower.keys import make_keys
from manyeyes.flower.split import split
from manyeyes.flower.template import write_app

HOSTS = ("localhost", "127.0.0.1")


def federate(words: list[str]) -> int:
    """Write an app, split a population into the stores of clients, or make keys."""
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    given = _parser().parse_args([word for word in words if word not in settings], Namespace(settings=settings))
    return {"init": _init, "split": _split, "keys": _keys}[given.action](given)


def _parser() -> Parser:
    parser = Parser("manyeyes federate", description="The same training on separate clients, with Flower.")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    init = actions.add_parser(
        "init",
        help="write a Flower app that trains with these settings",
        usage="%(prog)s FOLDER [SETTING=VALUE ...] [options]",
        description="Write a Flower app; its settings are those of manyeyes run: algorithm=fedvc rounds=20 ...",
    )
    init.add_argument("app", type=Path, help="the folder of the app")
    for rule in fields(FederationConfig):
        if rule.name not in ("settings", "resume"):
            flag, meaning = "--" + rule.name.replace("_", "-"), f"{rule.metadata['meaning']} (%(default)s)"
            init.add_argument(flag, dest=rule.name, type=type(rule.default), default=rule.default, help=meaning)
    cut = actions.add_parser(
        "split",
        help="write a store for each user of a population, to try a federation",
        usage="%(prog)s FOLDER [SETTING=VALUE ...] [--users N]",
        description="Write a store for each user; the settings are those of manyeyes run: data=store data.path=...",
    )
    cut.add_argument("folder", type=Path, help="the folder of the stores")
    cut.add_argument("--users", type=int, default=0, help="at most so many; 0: all (%(default)s)")
    keys = actions.add_parser("keys", help="make certificates for TLS, and a key for each client")
    keys.add_argument("folder", type=Path, help="the folder of the keys")
    keys.add_argument("--clients", type=int, default=3, help="how many (%(default)s)")
    keys.add_argument("--host", action="append", help=f"a name or address of the SuperLink ({', '.join(HOSTS)})")
    return parser


def _init(given: Namespace) -> int:
    rules = FederationConfig(
        settings=shlex.join(given.settings),
        **{f.name: getattr(given, f.name) for f in fields(FederationConfig) if f.name not in ("settings", "resume")},
    )
    parse_settings(rules.settings)  # which refuses what cannot be federated, before anything is written
    write_app(given.app, rules)
    print(f"{given.app}: a Flower app; run it with: flwr run {given.app}")
    return 0


def _split(given: Namespace) -> int:
    config = parse_settings(shlex.join(given.settings)).config
    made = split(build_population(config.data, config.seed), given.folder, config.data.task, given.users)
    print(f"{given.folder}: {len(made)} stores; give a node its own with --node-config 'store=\"{made[0]}\"'")
    return 0


def _keys(given: Namespace) -> int:
    hosts = tuple(given.host or HOSTS)
    make_keys(given.folder, given.clients, hosts)
    print(f"{given.folder}: ca.crt, server.crt and server.key for {', '.join(hosts)}; {given.clients} client keys")
    return 0
