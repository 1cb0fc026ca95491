"""A structured fuzzer of every reader and every setting: `python -m tests.fuzz --help`."""
