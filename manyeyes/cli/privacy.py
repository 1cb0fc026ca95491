"""`manyeyes privacy`: plan differential privacy before training, or audit our own private training by attacking it."""

from argparse import Namespace
from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.io.steps import announce, shows_progress
from manyeyes.privacy.audit import audit
from manyeyes.privacy.calibration import calibrate
from manyeyes.report.privacy import plan, show
from manyeyes.training.progress import show_progress

USAGE = """manyeyes privacy plan --users N --cohort-size K --rounds T (--epsilon E | --noise-multiplier Z) [--delta D]

Of rounds, noise multiplier, epsilon and delta, leave one out: it is computed from the others. Delta is N^-1.1 by
default; it is computed if the other three are given."""
EXAMPLE = "manyeyes privacy plan --users 10000 --cohort-size 200 --rounds 1000 --epsilon 2"
INTERVAL, PRECISE_INTERVAL = 1e-3, 1e-4  # of privacy losses, for pld


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    with show_progress(f"privacy {args.action}", shows_progress()):
        return _audit(args) if args.action == "audit" else _plan(args)


def _audit(args: Namespace) -> int:
    announce(f"attacking {args.rounds} rounds with {args.canaries:,} canaries", "about a minute")
    result = audit(args.epsilon, args.delta, args.users, args.canaries, args.rounds, args.seed, args.engine)
    print(result.describe())
    return 0 if result.passed else 1


def _plan(args: Namespace) -> int:
    delta = args.delta
    if delta is None and None in (args.rounds, args.noise_multiplier, args.epsilon):
        delta = "auto"
    cohort_size = args.users if args.cohort_size is None and args.sampling == "none" else args.cohort_size
    if cohort_size is None:
        raise ValueError("--cohort-size is missing: give the users per round, or --sampling none for all users")
    noise_cohort_size = cohort_size if args.noise_cohort_size is None else args.noise_cohort_size
    target = (args.rounds, args.noise_multiplier, args.epsilon, delta)
    interval = PRECISE_INTERVAL if args.precise else INTERVAL
    announce("computing the noise and the budget", "seconds; with --accountant pld up to minutes")
    guarantee = calibrate(args.users, noise_cohort_size, *target, args.sampling, args.accountant, interval)
    print(show(plan(guarantee, cohort_size, args.clipping_norm, args.num_parameters), args.out))
    return 0


def delta_or_auto(text: str) -> float | str:
    return text if text == "auto" else float(text)


def _parser() -> Parser:
    parser = Parser("manyeyes privacy", description="User-level central differential privacy.", example=EXAMPLE)
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    planned = actions.add_parser(
        "plan", help="compute noise, rounds, epsilon or delta from the others", usage=USAGE, example=EXAMPLE
    )
    planned.add_argument("--users", type=int, required=True, help="N, users in the training population")
    planned.add_argument("--cohort-size", type=int, help="K, users per round")
    planned.add_argument("--rounds", type=int, help="T")
    planned.add_argument("--epsilon", type=float)
    planned.add_argument("--delta", type=delta_or_auto, help="a number, or auto for N^-1.1")
    planned.add_argument("--noise-multiplier", type=float, help="z: standard deviation of the sum's noise, in clips")
    planned.add_argument("--sampling", default="poisson", help="poisson, fixed or none (%(default)s)")
    planned.add_argument("--accountant", default="rdp", help="rdp or pld (%(default)s)")
    planned.add_argument("--precise", action="store_true", help="ten times finer privacy losses, for pld")
    planned.add_argument("--noise-cohort-size", type=int, help="users per round whose noise the cohort simulates")
    planned.add_argument("--clipping-norm", type=float, default=1.0, help="bound on an update's norm (%(default)s)")
    planned.add_argument("--num-parameters", type=int, help="P, trainable parameters: shows the signal-to-noise ratio")
    planned.add_argument("--out", type=Path, default=Path("privacy_plan"), help="the folder to write (%(default)s)")
    help = "attack our own private training: a lower bound on epsilon"
    audited = actions.add_parser("audit", help=help, example="manyeyes privacy audit --epsilon 2 --rounds 8")
    audited.add_argument("--epsilon", type=float, default=2.0, help="of the guarantee (%(default)s)")
    audited.add_argument("--delta", type=float, default=1e-5, help="of the guarantee (%(default)s)")
    audited.add_argument("--users", type=int, default=200, help="users in addition to the canaries (%(default)s)")
    audited.add_argument("--canaries", type=int, default=4000, help="users who may take part, or not (%(default)s)")
    audited.add_argument("--rounds", type=int, default=8, help="of training (%(default)s)")
    audited.add_argument("--seed", type=int, default=0, help="decides which canaries take part; not the noise")
    audited.add_argument("--engine", default="reference", help="an engine of manyeyes run (%(default)s)")
    return parser
