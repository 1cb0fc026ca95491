"""The datasets by name, and `--download`: download, extract, and read the folder."""

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


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a folder and the address at which a real server serves its files."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_a_download_is_extracted_read_and_not_repeated(tmp_path: Path, site: tuple[Path, str]) -> None:
    folder, address = site
    cifar10 = dataset("cifar10")
    cifar10.write_synthetic(
        SyntheticImages(users=12, size=32, coarse=5, fine=20, images_per_user=5), tmp_path / "synthetic"
    )
    with tarfile.open(folder / "images.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "synthetic" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    local = replace(cifar10, remote_files=(RemoteFile(address + "images.tar.gz"),))
    local.download(tmp_path / "raw")
    assert len(local.read_manifest(tmp_path / "raw", partition="iid", users=4)) == 60
    (folder / "images.tar.gz").unlink()
    local.download(tmp_path / "raw")  # nothing is missing, so nothing is requested


def test_an_unknown_dataset_is_named() -> None:
    with pytest.raises(ValueError, match="Unknown dataset 'mars': choose cifar10"):
        dataset("mars")
