"""`python -m manyeyes.fedper.main`: the commands of the FedPer baseline, by the module that its README names."""

import sys

from manyeyes.cli import main

if __name__ == "__main__":
    sys.exit(main(["fedper", *sys.argv[1:]]))
