"""`python -m manyeyes.flair.main`: the commands of the FLAIR baseline, by the module that its README names."""

import sys

from manyeyes.cli import main

if __name__ == "__main__":
    sys.exit(main(["flair", *sys.argv[1:]]))
