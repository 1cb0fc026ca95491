"""`python -m manyeyes.flair`: the commands of the FLAIR baseline."""

import sys

from manyeyes.cli import main

if __name__ == "__main__":
    sys.exit(main(["flair", *sys.argv[1:]]))
