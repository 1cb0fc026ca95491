"""`python -m manyeyes` is the command `manyeyes`."""

import os
import sys

from manyeyes.cli import main

code = main()
if "RANK" in os.environ:  # of torchrun
    from manyeyes.engine.distributed import leave

    leave(code)
sys.exit(code)
