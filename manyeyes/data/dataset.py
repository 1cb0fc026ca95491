"""What a file of `datasets/` declares about its dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manyeyes.data.download.archive import SUFFIXES, extract_all
from manyeyes.data.download.fetch import RemoteFile, download_progress, fetch
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages


@dataclass(frozen=True)
class Dataset:
    """How to read, download and imitate one dataset."""

    description: str
    read_manifest: Callable[..., Manifest]  # of the raw folder; its keyword options are the command's
    size: int | None  # default pixels per side of a prepared dataset; None: those of the images
    write_synthetic: Callable[[SyntheticImages, Path], None]  # writes synthetic images in the dataset's raw format
    remote_files: tuple[RemoteFile, ...] = ()  # archives are extracted

    def download(self, raw: Path) -> None:
        """Download and extract what is missing; each step resumes where it stopped."""
        for remote in self.remote_files:
            with download_progress(remote.name) as progress:
                fetch(remote, raw, progress)
        archives = [raw / remote.name for remote in self.remote_files if remote.name.endswith(SUFFIXES)]
        with download_progress("extracting") as progress:
            extract_all(archives, raw, progress=progress)
