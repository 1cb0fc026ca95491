"""Time whole rounds: `python -m benchmarks.rounds --help`."""

import sys

from benchmarks.rounds.command import main

sys.exit(main(sys.argv[1:]))
