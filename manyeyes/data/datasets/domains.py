"""Sets of domains (Office-Caltech, DomainNet, PACS, digits): images in DIR/<domain>/<class>/."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from manyeyes.data import partition as partitions
from manyeyes.data.datasets import folder
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages


def read_manifest(
    raw: Path,
    *,
    partition: str = "domain",
    users: int = 10,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    seed: int = 0,
) -> Manifest:
    """Return the images of all domains, split 83/17 within each user.

    With partition=domain each domain is one user; with another one, the images of each domain are given to `users` users.
    """
    manifest = folder.read_manifest(raw, split="per_user", seed=seed)
    domains = manifest.users
    manifest = replace(manifest, columns={**manifest.columns, "domain": domains})
    if partition == "domain":
        return manifest
    owners = np.full(len(domains), "", object)
    ids = manifest.labels["label"].nonzero()[1]
    for domain in np.unique(domains):
        rows = np.flatnonzero(domains == domain)
        clients = partitions.make_owners(ids[rows], partition, users, alpha, classes_per_client, seed)
        owners[rows] = [f"{domain}-{number:03d}" if number >= 0 else "" for number in clients]
    examples = np.flatnonzero(owners != "")
    names = owners[examples].astype(str)
    partitioned = replace(manifest.take(examples), users=names, split=partitions.within_users(names, seed))
    return replace(
        partitioned, notes={**partitioned.notes, "partition": partition, "users of each domain": users, "seed": seed}
    )


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images, with a domain for each user."""
    folder.write_synthetic(synthetic, raw)
