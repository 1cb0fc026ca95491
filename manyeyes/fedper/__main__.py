"""`python -m manyeyes.fedper`: the commands of the FedPer baseline."""

import sys

from manyeyes.cli import main

if __name__ == "__main__":
    sys.exit(main(["fedper", *sys.argv[1:]]))
