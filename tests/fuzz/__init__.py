"""A structured fuzzer of every reader and every setting: `python -m tests.fuzz --help`."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
