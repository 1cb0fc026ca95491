"""The datasets by name: how each is listed, fetched and imitated."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from manyeyes.data.datasets import cifar, cifar_files, flair, flickr_aes, folder, inaturalist, landmarks
from manyeyes.data.datasets import flair_huggingface as hub
from manyeyes.data.download import archive
from manyeyes.data.download.fetch import RemoteFile, download_progress, fetch
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SyntheticWriter = Callable[[SyntheticImages, Path], object]


@dataclass(frozen=True)
class Dataset:
    """One dataset: from its raw files to a listing, and what `--download` fetches."""

    description: str
    read_manifest: Callable[..., Manifest]  # of the raw folder; its keyword options are the command's
    size: int | None  # pixels a side of the store, unless asked otherwise; None: as the images are
    write_synthetic: SyntheticWriter | None = None  # writes a world in the dataset's raw format
    remotes: tuple[RemoteFile, ...] = ()  # files on the web; archives are extracted

    def download(self, raw: Path) -> None:
        """Fetch what is missing and extract what is packed; each step goes on where it stopped."""
        for remote in self.remotes:
            with download_progress(remote.name) as progress:
                fetch(remote, raw, progress)
        packed = [raw / r.name for r in self.remotes if r.name.endswith(archive.ENDINGS)]
        with download_progress("extracting") as progress:
            archive.extract_all(packed, raw, progress=progress)


def _flair(raw: Path) -> Manifest:
    """FLAIR from its raw JSON and JPEGs, or from the hub's parquet shards, whichever the folder holds."""
    return flair.read_manifest(raw) if (raw / flair.LABELS).exists() else hub.read_manifest(raw)


def _cifar_standin(kind: str, world: SyntheticImages, raw: Path) -> Path:
    return cifar.write_synthetic(make_synthetic(world), raw, kind)


def _folder_standin(world: SyntheticImages, raw: Path) -> Path:
    return folder.write_synthetic(make_synthetic(world), raw)


FLAIR_FILES = tuple(RemoteFile(flair.BASE + name) for name in (*flair.LABEL_FILES, *flair.ARCHIVES))

DATASETS = {
    "flair": Dataset(
        "FLAIR (Song et al. 2022): raw JSON and JPEGs, or apple/flair's parquet shards",
        _flair,
        256,
        flair.write_synthetic,
        FLAIR_FILES,
    ),
    **{
        f"cifar{classes}": Dataset(
            f"CIFAR-{classes} (Krizhevsky 2009): python or binary archive",
            partial(cifar.read_manifest, classes=classes),
            None,
            partial(_cifar_standin, f"cifar-{classes}-binary"),
            (
                RemoteFile(
                    f"{cifar_files.SITE}cifar-{classes}-python.tar.gz",
                    cifar_files.MD5[f"cifar-{classes}-python.tar.gz"],
                ),
            ),
        )
        for classes in (10, 100)
    },
    "inaturalist": Dataset(
        "iNaturalist-User-120k and Geo splits (Hsu et al. 2020)",
        inaturalist.read_manifest,
        299,
        inaturalist.write_synthetic,
        (*inaturalist.RELEASED, *inaturalist.ANNOTATIONS, inaturalist.PHOTOGRAPHS),
    ),
    "landmarks": Dataset(
        "Landmarks-User-160k and gld23k (Hsu et al. 2020)",
        landmarks.read_manifest,
        224,
        landmarks.write_synthetic,
        (*landmarks.RELEASED, *landmarks.RELEASED_23K, *landmarks.ANNOTATIONS, *landmarks.PHOTOGRAPHS),
    ),
    "flickr_aes": Dataset(
        "FLICKR-AES (Ren et al. 2017): the ratings of each worker",
        flickr_aes.read_manifest,
        224,
        flickr_aes.write_synthetic,
    ),
    "folder": Dataset(
        "your own: DIR/USER/CLASS/*.jpg, or a CSV or parquet table", folder.read_manifest, 224, _folder_standin
    ),
}


def dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise ValueError(f"dataset {name!r} is unknown: choose {', '.join(DATASETS)}")
    return DATASETS[name]
