"""What `--download` does: fetch, extract, and leave a folder that the listing reads."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from manyeyes.data.download.fetch import RemoteFile
from manyeyes.data.registry import dataset
from manyeyes.data.synthetic.dataset import SyntheticImages


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which a real server gives its files."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_download_is_extracted_and_listed_and_not_fetched_again(tmp_path: Path, site: tuple[Path, str]) -> None:
    folder, address = site
    cifar10 = dataset("cifar10")
    assert cifar10.write_synthetic is not None
    cifar10.write_synthetic(SyntheticImages(users=12, size=32, coarse=5, fine=20, images_per_user=5), tmp_path / "made")
    with tarfile.open(folder / "images.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "made" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    served = replace(cifar10, remotes=(RemoteFile(address + "images.tar.gz"),))
    served.download(tmp_path / "raw")
    assert len(served.read_manifest(tmp_path / "raw", partition="iid", users=4)) == 60
    (folder / "images.tar.gz").unlink()
    served.download(tmp_path / "raw")  # all is there, so nothing is asked of the server


def test_an_unknown_dataset_is_named() -> None:
    with pytest.raises(ValueError, match="'mars' is unknown: choose flair"):
        dataset("mars")
