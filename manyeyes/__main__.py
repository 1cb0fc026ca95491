"""`python -m manyeyes` is the command `manyeyes`."""

import sys

from manyeyes.cli import main

sys.exit(main())
