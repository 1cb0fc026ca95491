"""The files of a run folder, by name: the one place that spells them."""

CONFIG = "config.yaml"  # everything that was set
ENVIRONMENT = "environment.json"  # versions, machine, revision
DATASET_STATS = "dataset_stats.json"
METRICS = "metrics.jsonl"  # one event a round
CHECKPOINT = "checkpoint.safetensors"
CLIENT_STATES = "clients.bin"
MODEL = "model.safetensors"  # of a finished run
PER_CLASS = "per_class.csv"
PER_USER = "per_user.csv"
PRIVACY = "privacy.json"
DIVERGED = "diverged.txt"  # why the run diverged, in one sentence
FAILED = "failed.txt"  # why the run failed, in one sentence
LOCK = ".lock"
OLD_DATASET_STATS = "population.json"  # of a run folder that an older version of manyeyes wrote
