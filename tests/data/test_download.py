"""Downloads, from a real server on this machine."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from manyeyes.data.download import fetch as module
from manyeyes.data.download.fetch import Progress, RemoteFile, check_space, download_progress, fetch, no_progress
from manyeyes.io.files import exclusive_lock

BODY = bytes(range(256)) * 4096  # 1 MiB
MD5 = hashlib.md5(BODY).hexdigest()


@dataclass
class Site:
    """The file that the server sends, how it misbehaves, and the requests it got."""

    body: bytes = BODY
    tag: str = '"first"'
    ranges: bool = True
    shifted: bool = False  # responds to a range with another one
    lengths: bool = True
    drops: list[int] = field(default_factory=list)  # bytes after which each of the first responses breaks off
    statuses: list[int] = field(default_factory=list)  # of the first responses, instead of the file
    range_statuses: list[int] = field(default_factory=list)  # of the first responses to a range
    ranges_requested: list[str] = field(default_factory=list)  # the Range of each request
    url: str = ""

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        requested_range = handler.headers.get("Range", "")
        self.ranges_requested.append(requested_range)
        statuses = self.statuses or (self.range_statuses if requested_range else [])
        if statuses:
            handler.send_error(statuses.pop(0))
            return
        start = 0
        if self.ranges and requested_range and handler.headers.get("If-Range") == self.tag:
            start = int(requested_range.removeprefix("bytes=").removesuffix("-")) - self.shifted
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        if self.lengths:
            handler.send_header("Content-Length", str(len(self.body) - start))
        handler.send_header("ETag", self.tag)
        handler.end_headers()
        rest = self.body[start:]
        handler.wfile.write(rest[: self.drops.pop(0)] if self.drops else rest)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.respond(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that hangs up, as one without room for the file does

    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/data/file.zip"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield served
    server.shutdown()
    server.server_close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "file.zip"


def download(url: str, path: Path, md5: str | None = None, progress: Progress = no_progress) -> None:
    assert fetch(RemoteFile(url, md5), path.parent, progress) == path


def files_next_to(path: Path) -> list[str]:
    return [p.name for p in path.parent.iterdir()]


def test_a_file_arrives_completely_and_alone_in_its_folder(site: Site, path: Path) -> None:
    download(site.url, path, md5=MD5)
    assert path.read_bytes() == BODY
    assert files_next_to(path) == ["file.zip"]


def test_an_existing_file_is_not_requested_again(site: Site, path: Path) -> None:
    download(site.url, path, md5=MD5)
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == [""]


def test_another_file_of_that_name_is_not_changed(site: Site, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match=r"file.zip exists, but its md5 is [0-9a-f]+ instead of [0-9a-f]+: move"):
        download(site.url, path, md5=MD5)
    assert path.read_bytes() == b"other"


def test_a_broken_connection_resumes_where_it_stopped(site: Site, path: Path) -> None:
    site.drops = [1000, 500]
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == ["", "bytes=1000-", "bytes=1500-"]


def test_connections_that_bring_bytes_may_break_more_often_than_the_retry_limit(site: Site, path: Path) -> None:
    site.drops = [100] * 10
    download(site.url, path, md5=MD5)
    assert len(site.ranges_requested) == 11


def test_a_server_without_ranges_sends_everything_again(site: Site, path: Path) -> None:
    site.ranges, site.drops = False, [1000]
    download(site.url, path, md5=MD5)
    assert path.read_bytes() == BODY


def test_a_response_with_another_range_is_not_appended(site: Site, path: Path) -> None:
    site.shifted, site.drops = True, [1000]
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == ["", "bytes=1000-", ""]


def test_a_file_with_a_weak_etag_is_not_resumed(site: Site, path: Path) -> None:
    site.tag, site.drops = 'W/"weak"', [1000]
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == ["", ""]


def test_a_file_that_changed_between_attempts_is_not_mixed(site: Site, path: Path) -> None:
    site.drops = [1000]

    def change(num_bytes: int, total: int | None) -> None:
        if num_bytes:
            site.body, site.tag = BODY[::-1], '"second"'

    download(site.url, path, progress=change)
    assert path.read_bytes() == BODY[::-1]


def test_a_later_run_resumes_where_an_earlier_one_stopped(
    site: Site, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drops = [1000, 0, 0]
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.0,))
    with pytest.raises(ValueError, match=r"failed 2 times in a row .the connection broke off"):
        download(site.url, path)
    assert not path.exists()
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == ["", "bytes=1000-", "bytes=1000-", "bytes=1000-"]


def test_a_complete_part_is_not_requested_again(site: Site, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_checksum_error", stop)
        with pytest.raises(KeyboardInterrupt):
            download(site.url, path)
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == [""]


def test_a_part_of_another_address_is_not_continued(site: Site, path: Path) -> None:
    path.parent.mkdir()
    path.with_name("file.zip.part").write_bytes(b"other")
    path.with_name("file.zip.part.json").write_text('{"url": "http://other", "size": 5, "version": "\\"first\\""}')
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == [""]


def test_an_unreadable_state_file_restarts_the_download(site: Site, path: Path) -> None:
    path.parent.mkdir()
    path.with_name("file.zip.part").write_bytes(b"other")
    path.with_name("file.zip.part.json").write_text("[")
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == [""]


def test_a_temporary_error_is_retried(site: Site, path: Path) -> None:
    site.statuses = [503, 429]
    download(site.url, path, md5=MD5)
    assert len(site.ranges_requested) == 3


def test_a_server_without_lengths_is_read_to_its_end(site: Site, path: Path) -> None:
    site.lengths = False
    download(site.url, path, md5=MD5)
    assert path.read_bytes() == BODY


def test_a_part_longer_than_the_file_restarts_the_download(site: Site, path: Path) -> None:
    site.drops = [1000]
    site.range_statuses = [416]
    download(site.url, path, md5=MD5)
    assert site.ranges_requested == ["", "bytes=1000-", ""]


def test_a_missing_file_raises_at_once(site: Site, path: Path) -> None:
    site.statuses = [404]
    with pytest.raises(ValueError, match=r"/data/file.zip failed: the server answered 404 Not Found: check the addre"):
        download(site.url, path)
    assert len(site.ranges_requested) == 1


def test_a_wrong_checksum_leaves_no_file(site: Site, path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"not the published file \(its md5 is [0-9a-f]+ instead of 00\): check the address"
    ):
        download(site.url, path, md5="00")
    assert files_next_to(path) == []


def test_a_full_disk_raises_before_anything_is_written(site: Site, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(ValueError, match=r"has 0.00 GB free and the rest of .* takes 0.00 GB: make room"):
        download(site.url, path)
    assert files_next_to(path) == []


def test_only_what_is_missing_needs_room(site: Site, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.drops = [len(BODY) - 10]
    room = iter([len(BODY), 10])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(room)))
    download(site.url, path, md5=MD5)
    assert list(room) == []


def test_space_is_compared_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_500_000_000))
    check_space(tmp_path, 2_500_000_000, "it")
    with pytest.raises(ValueError, match=r"has 2.50 GB free and it takes 3.00 GB: make room, or choose a folder"):
        check_space(tmp_path, 3_000_000_000, "it")


def test_an_unreachable_server_is_reported_with_the_reason(path: Path, site: Site) -> None:
    with pytest.raises(ValueError, match=r"failed 3 times in a row .*refused.*: check the connection"):
        download("http://127.0.0.1:9/file.zip", path)


def test_only_web_addresses_are_accepted(path: Path) -> None:
    with pytest.raises(ValueError, match=r"'file:///etc/passwd' is neither http nor https"):
        download("file:///etc/passwd", path)


def test_progress_ends_with_all_bytes(site: Site, path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    download(site.url, path, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)


def hold(path: Path, is_locked: object, release: object) -> None:
    with exclusive_lock(path):
        is_locked.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_a_second_process_is_refused_while_the_first_downloads(site: Site, path: Path) -> None:
    path.parent.mkdir()
    context = multiprocessing.get_context("fork")
    is_locked, release = context.Event(), context.Event()
    first = context.Process(target=hold, args=(path, is_locked, release))
    first.start()
    try:
        assert is_locked.wait(30)
        with pytest.raises(ValueError, match=r"file.zip is in use by process \d+: wait for it"):
            download(site.url, path)
    finally:
        release.set()
        first.join()
    download(site.url, path, md5=MD5)
    assert files_next_to(path) == ["file.zip"]


def test_no_progress_bar_without_a_terminal() -> None:
    with download_progress("file.zip") as progress:
        assert progress is no_progress
