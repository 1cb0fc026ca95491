"""`python -m manyeyes` is the command `manyeyes`."""

import os
import sys

from manyeyes.cli import main

code = main()
if "RANK" in os.environ:  # of torchrun
    from manyeyes.engines.distributed.process_group import shutdown

    shutdown(code)
sys.exit(code)
