"""`manyeyes privacy`: plan what is promised before anything is trained, and attack our own training to see it kept."""

from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.privacy.audit import audit
from manyeyes.privacy.calibration import calibrate
from manyeyes.report.privacy import plan, show

USAGE = """manyeyes privacy plan --users N --cohort K --rounds T (--epsilon E | --noise Z) [--delta D]

One of rounds, noise, epsilon and delta is left out and computed from the others; delta is N^-1.1 unless it is given or
asked for, by giving the other three."""


def main(words: list[str]) -> int:
    """Print a plan, and write its pictures and page; or print an audit."""
    given = _parser().parse_args(words)
    if given.action == "audit":
        found = audit(given.epsilon, given.delta, given.users, given.canaries, given.rounds, given.seed, given.engine)
        print(found.describe())
        return 0 if found.passed else 1
    delta = given.delta
    if delta is None and None in (given.rounds, given.noise, given.epsilon):
        delta = "auto"
    cohort = given.users if given.cohort is None and given.sampling == "none" else given.cohort
    if cohort is None:
        raise ValueError("cohort is missing: give the users a round with --cohort, or --sampling none for everyone")
    promise = calibrate(
        given.users,
        cohort if given.noise_cohort is None else given.noise_cohort,
        given.rounds,
        given.noise,
        given.epsilon,
        delta,
        given.sampling,
        given.accountant,
        1e-4 if given.precise else 1e-3,
    )
    print(show(plan(promise, cohort, given.clip, given.parameters), given.out))
    return 0


def delta_or_auto(word: str) -> float | str:
    return word if word == "auto" else float(word)


def _parser() -> Parser:
    parser = Parser("manyeyes privacy", description="User-level central differential privacy.")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    planned = actions.add_parser("plan", help="noise, rounds, epsilon or delta from the others", usage=USAGE)
    planned.add_argument("--users", type=int, required=True, help="N, in the training population")
    planned.add_argument("--cohort", type=int, help="K, users a round")
    planned.add_argument("--rounds", type=int, help="T")
    planned.add_argument("--epsilon", type=float)
    planned.add_argument("--delta", type=delta_or_auto, help="a number, or auto for N^-1.1")
    planned.add_argument("--noise", type=float, help="z: standard deviation of the noise on the sum, in clips")
    planned.add_argument("--sampling", default="poisson", help="poisson, fixed or none (%(default)s)")
    planned.add_argument("--accountant", default="rdp", help="rdp or pld (%(default)s)")
    planned.add_argument("--precise", action="store_true", help="ten times finer privacy losses, for pld")
    planned.add_argument("--noise-cohort", type=int, help="users a round whose noise the cohort simulates")
    planned.add_argument("--clip", type=float, default=1.0, help="longest update of a user (%(default)s)")
    planned.add_argument("--parameters", type=int, help="P, trained numbers of the model: shows signal to noise")
    planned.add_argument("--out", type=Path, default=Path("privacy_plan"), help="the folder to write (%(default)s)")
    audited = actions.add_parser("audit", help="attack our own private training: what can be proved of epsilon")
    audited.add_argument("--epsilon", type=float, default=2.0, help="what is promised (%(default)s)")
    audited.add_argument("--delta", type=float, default=1e-5, help="(%(default)s)")
    audited.add_argument("--users", type=int, default=200, help="beside the canaries (%(default)s)")
    audited.add_argument("--canaries", type=int, default=4000, help="users who may be there or not (%(default)s)")
    audited.add_argument("--rounds", type=int, default=8, help="of training (%(default)s)")
    audited.add_argument("--seed", type=int, default=0, help="decides who is there; the noise does not follow from it")
    audited.add_argument("--engine", default="reference", help="reference, ranks, vector or lanes (%(default)s)")
    return parser
