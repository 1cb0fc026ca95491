"""Archives: extracted completely, refused if they leave the folder, reported if they are broken."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyeyes.data.download import archive as module
from manyeyes.data.download.archive import extract, extract_all

FILES = {"images/a.jpg": b"A" * 3000, "images/deep/b.jpg": b"\x00\xff" * 700, "labels.json": b"[]", "empty": b""}


def tar(path: Path, files: dict[str, bytes], *special_members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as out:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
        for member in special_members:
            out.addfile(member)
    return path


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(zipfile.ZipInfo(name), content)
    return path


def make(path: Path, files: dict[str, bytes]) -> Path:
    return zipped(path, files) if path.suffix == ".zip" else tar(path, files)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def contents(into: Path) -> dict[str, bytes]:
    """Return every file in the folder but the record of extracted archives."""
    files = [p for p in into.rglob("*") if p.is_file() and module.MARKER_FOLDER not in p.parts]
    return {str(p.relative_to(into)): p.read_bytes() for p in files}


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "into"


@pytest.mark.parametrize("suffix", module.SUFFIXES)
def test_every_kind_is_extracted_completely(tmp_path: Path, into: Path, suffix: str) -> None:
    extract(make(tmp_path / f"data{suffix}", FILES), into)
    assert contents(into) == FILES
    assert [p.name for p in (into / module.MARKER_FOLDER).iterdir()] == [f"data{suffix}"]


def test_archives_of_the_system_tools_are_extracted(tmp_path: Path, into: Path) -> None:
    folder = tmp_path / "made" / "images"
    folder.mkdir(parents=True)
    (folder / ("long" * 40 + ".jpg")).write_bytes(b"x")
    subprocess.run(["tar", "-C", tmp_path / "made", "-czf", tmp_path / "data.tgz", "./images"], check=True)
    extract(tmp_path / "data.tgz", into)
    assert contents(into) == {f"images/{'long' * 40}.jpg": b"x"}


@pytest.mark.parametrize("suffix", module.SUFFIXES)
@pytest.mark.parametrize(
    "name", ["../evil", "images/../../evil", "/evil", "..\\evil", "C:\\evil", "C:/evil", "..", ".extracted/data.zip"]
)
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, into: Path, suffix: str, name: str) -> None:
    archive = make(tmp_path / f"data{suffix}", FILES | {name: b"evil"})
    before = {p for p in tmp_path.rglob("*") if into not in p.parents}
    with pytest.raises(ValueError, match=r"was not extracted: its member .* (leads out|would overwrite)"):
        extract(archive, into)
    assert contents(into) == {}
    assert {p for p in tmp_path.rglob("*") if into not in p.parents} - before <= {into, into.parent}


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc"),
        special("link", tarfile.SYMTYPE, "../.."),
        special("link", tarfile.LNKTYPE, "../../secret"),
        special("device", tarfile.CHRTYPE),
        special("block", tarfile.BLKTYPE),
        special("pipe", tarfile.FIFOTYPE),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, into: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(ValueError, match=rf"its member '{member.name}' is a link or a device: get it"):
        extract(tar(tmp_path / "data.tar", FILES, member), into)
    assert contents(into) == {}


def test_a_link_in_a_zip_is_refused(tmp_path: Path, into: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as out:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        out.writestr(member, "/etc")
    with pytest.raises(ValueError, match=r"its member 'link' is a link or a device"):
        extract(tmp_path / "data.zip", into)


def test_an_encrypted_zip_is_refused(tmp_path: Path, into: Path) -> None:
    content = bytearray(zipped(tmp_path / "data.zip", {"a": b"secret"}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory
    (tmp_path / "data.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"its member 'a' is encrypted"):
        extract(tmp_path / "data.zip", into)


@pytest.mark.parametrize("suffix", module.SUFFIXES)
@pytest.mark.parametrize("fraction", [0, 0.05, 0.3, 0.6])
def test_a_truncated_archive_raises_and_leaves_nothing(
    tmp_path: Path, into: Path, suffix: str, fraction: float
) -> None:
    archive = make(tmp_path / f"data{suffix}", FILES)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ValueError, match=r"Archive .* is truncated or damaged \(.*\): download it again"):
        extract(archive, into)
    assert contents(into) == {}


def test_a_tar_cut_between_two_members_raises(tmp_path: Path, into: Path) -> None:
    archive = tar(tmp_path / "data.tar", FILES)
    with tarfile.open(archive) as opened:
        cut = opened.getmembers()[2].offset
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"its end is missing"):
        extract(archive, into)
    assert contents(into) == {}


def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path, into: Path) -> None:
    archive = tar(tmp_path / "data.tar", FILES)
    content = bytearray(archive.read_bytes())
    with tarfile.open(archive) as opened:
        content[opened.getmembers()[2].offset] ^= 255
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"its end is missing"):
        extract(archive, into)


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_a_flipped_byte_raises(tmp_path: Path, into: Path, suffix: str) -> None:
    noise = {"noise": bytes((i * i * 7 + i // 3) % 256 for i in range(20000))}
    archive = make(tmp_path / f"data{suffix}", noise)
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"is truncated or damaged"):
        extract(archive, into)
    assert contents(into) == {}


def test_a_web_page_instead_of_an_archive_raises(tmp_path: Path, into: Path) -> None:
    (tmp_path / "data.tar.gz").write_text("<html>Not found</html>")
    with pytest.raises(ValueError, match=r"is truncated or damaged"):
        extract(tmp_path / "data.tar.gz", into)


def test_a_missing_archive_and_an_unknown_kind_raise(tmp_path: Path, into: Path) -> None:
    with pytest.raises(ValueError, match=r"data.zip does not exist: check the path"):
        extract(tmp_path / "data.zip", into)
    with pytest.raises(ValueError, match=r"data.rar is not one of .zip, .tar, .tar.gz, .tgz: give one of these"):
        extract(tmp_path / "data.rar", into)


def test_a_full_disk_raises_before_anything_is_written(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zipped(tmp_path / "data.zip", {"zeros": bytes(1_000_000)})  # a thousandth of that, compressed
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999_999))
    with pytest.raises(ValueError, match=r"GB free and the content of .*data.zip takes 0.00 GB: make room"):
        extract(archive, into)
    assert contents(into) == {}


def test_a_disk_that_fills_up_raises(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(ValueError, match=r"cannot be extracted into .*into \(No space left on device\): make room"):
        extract(tar(tmp_path / "data.tar", FILES), into)
    assert contents(into) == {}


def test_an_extracted_archive_is_not_extracted_again(tmp_path: Path, into: Path) -> None:
    archive = tar(tmp_path / "data.tar", FILES)
    extract(archive, into)
    (into / "labels.json").write_bytes(b"changed")
    extract(archive, into)
    assert contents(into)["labels.json"] == b"changed"


def test_another_archive_of_the_same_name_is_extracted(tmp_path: Path, into: Path) -> None:
    extract(tar(tmp_path / "data.tar", FILES), into)
    extract(tar(tmp_path / "data.tar", {"labels.json": b"[1]" * 999}), into)
    assert contents(into) == FILES | {"labels.json": b"[1]" * 999}


@pytest.mark.parametrize("stage", ["_unpack", "_merge"])
def test_a_killed_extraction_is_finished_by_the_next(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    archive = tar(tmp_path / "data.tgz", FILES)
    leftovers = into / module.MARKER_FOLDER / "data.tgz.unpacked" / "images"
    leftovers.mkdir(parents=True)
    (leftovers / "half.jpg").write_bytes(b"h")  # of a process that was killed before it could clean up
    real: Callable[..., None] = getattr(module, stage)

    def killed(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, stage, killed)
        with pytest.raises(KeyboardInterrupt):
            extract(archive, into)
    assert not (into / module.MARKER_FOLDER / "data.tgz").exists()
    extract(archive, into)
    assert contents(into) == FILES


def test_many_archives_are_extracted_into_one_folder(tmp_path: Path, into: Path) -> None:
    archives = [tar(tmp_path / f"small-{i:02d}.tar.gz", {f"small/{i}.jpg": bytes([i])}) for i in range(5)]
    seen: list[tuple[int, int | None]] = []
    extract_all(archives, into, lambda done, total: seen.append((done, total)))
    assert contents(into) == {f"small/{i}.jpg": bytes([i]) for i in range(5)}
    assert seen[-1][0] == seen[-1][1] == sum(a.stat().st_size for a in archives)


def test_one_bad_archive_among_many_is_named(tmp_path: Path, into: Path) -> None:
    archives = [tar(tmp_path / f"small-{i}.tgz", {f"small/{i}.jpg": b""}) for i in range(3)]
    archives[1].write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(ValueError, match=r"small-1.tgz is truncated or damaged"):
        extract_all(archives, into)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_expands_more_than_images_or_tables_do_is_refused(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "SPARE_BYTES", 1000)
    archive = tmp_path / name
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("images/a.jpg", bytes(1_000_000))
    else:
        tar(archive, {"images/a.jpg": bytes(1_000_000)})
    limit = module.MAX_EXPANSION * archive.stat().st_size + 1000
    with pytest.raises(
        ValueError, match=rf"was not extracted: it has more than {limit / 1e6:,.0f} MB, 20 times its size"
    ):
        extract(archive, into)
    assert contents(into) == {}
