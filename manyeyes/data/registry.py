"""The datasets by name: how each is read, downloaded and imitated with synthetic images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from manyeyes.data.datasets import (
    cifar,
    cifar_files,
    flair,
    flair_huggingface,
    flickr_aes,
    folder,
    inaturalist,
    landmarks,
)
from manyeyes.data.download import archive
from manyeyes.data.download.fetch import RemoteFile, download_progress, fetch
from manyeyes.data.manifest import Manifest, check_choice
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SyntheticWriter = Callable[[SyntheticImages, Path], object]


@dataclass(frozen=True)
class Dataset:
    """How to read, download and imitate one dataset."""

    description: str
    read_manifest: Callable[..., Manifest]  # of the raw folder; its keyword options are the command's
    size: int | None  # default pixels per side of a prepared dataset; None: those of the images
    write_synthetic: SyntheticWriter  # writes synthetic images in the dataset's raw format
    remote_files: tuple[RemoteFile, ...] = ()  # archives are extracted

    def download(self, raw: Path) -> None:
        """Download and extract what is missing; each step resumes where it stopped."""
        for remote in self.remote_files:
            with download_progress(remote.name) as progress:
                fetch(remote, raw, progress)
        archives = [raw / remote.name for remote in self.remote_files if remote.name.endswith(archive.SUFFIXES)]
        with download_progress("extracting") as progress:
            archive.extract_all(archives, raw, progress=progress)


def _read_flair(raw: Path) -> Manifest:
    """Read FLAIR from its raw JSON and JPEGs or from Hugging Face's parquet shards, whichever the folder has."""
    is_raw = (raw / flair.LABELS).exists()
    return flair.read_manifest(raw) if is_raw else flair_huggingface.read_manifest(raw)


def _cifar(classes: int) -> Dataset:
    archive_name = f"cifar-{classes}-python.tar.gz"
    return Dataset(
        f"CIFAR-{classes} (Krizhevsky 2009): python or binary archive",
        partial(cifar.read_manifest, classes=classes),
        None,
        lambda synthetic, raw: cifar.write_synthetic(make_synthetic(synthetic), raw, f"cifar-{classes}-binary"),
        (RemoteFile(cifar_files.SITE + archive_name, cifar_files.MD5[archive_name]),),
    )


DATASETS = {
    "flair": Dataset(
        "FLAIR (Song et al. 2022): raw JSON and JPEGs, or apple/flair's parquet shards",
        _read_flair,
        256,
        flair.write_synthetic,
        tuple(RemoteFile(flair.BASE_URL + path) for path in flair.REMOTE_PATHS),
    ),
    "cifar10": _cifar(10),
    "cifar100": _cifar(100),
    "inaturalist": Dataset(
        "iNaturalist-User-120k and Geo splits (Hsu et al. 2020)",
        inaturalist.read_manifest,
        299,
        inaturalist.write_synthetic,
        inaturalist.REMOTE_FILES,
    ),
    "landmarks": Dataset(
        "Landmarks-User-160k and gld23k (Hsu et al. 2020)",
        landmarks.read_manifest,
        224,
        landmarks.write_synthetic,
        landmarks.REMOTE_FILES,
    ),
    "flickr_aes": Dataset(
        "FLICKR-AES (Ren et al. 2017): the ratings of each rater",
        flickr_aes.read_manifest,
        224,
        flickr_aes.write_synthetic,
    ),
    "folder": Dataset(
        "your own: DIR/USER/CLASS/*.jpg, or a CSV or parquet table",
        folder.read_manifest,
        224,
        lambda synthetic, raw: folder.write_synthetic(make_synthetic(synthetic), raw),
    ),
}


def dataset(name: str) -> Dataset:
    """Return a dataset by its name."""
    check_choice("dataset", name, DATASETS)
    return DATASETS[name]
