"""Every reader of the package, as a target of the fuzzer: valid files, and the function that reads them."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

from manyeyes.components.compressors import Int8, TopK
from manyeyes.config import build
from manyeyes.config.compose import compose_config
from manyeyes.config.errors import format_error, is_config_error, is_out_of_memory
from manyeyes.config.groups import GROUPS
from manyeyes.config.run import check_complete, read_settings, train_from
from manyeyes.core.registry import build as build_component
from manyeyes.core.state import DivergenceError
from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.server import Dashboard
from manyeyes.data.datasets import (
    cifar,
    cifar_files,
    flair,
    flair_huggingface,
    flickr_aes,
    inaturalist,
    landmarks,
)  # fmt: skip
from manyeyes.data.datasets import (
    folder as folders,
)
from manyeyes.data.decode import UnreadableImage, decode
from manyeyes.data.download.archive import extract
from manyeyes.data.manifest import SYNTHETIC_MARKER, Manifest
from manyeyes.data.partition import released
from manyeyes.data.store.builder import UNCHECKED_VERSION, StoreBuilder, _format_line
from manyeyes.data.store.checksums import CHECKSUMS_FILE
from manyeyes.data.store.hdf5 import open_hdf5
from manyeyes.data.store.meta import meta_text
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.verify import verify
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.dataset import SyntheticImages
from manyeyes.models import build_model
from manyeyes.models.pretrained import load_pretrained
from manyeyes.report.report import html, sections
from manyeyes.training import checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.config import RunConfig
from manyeyes.training.run_files import CONFIG_FILE
from manyeyes.training.run_names import find_runs

MIB = 2**20
CPU = torch.device("cpu")
SYNTHETIC = SyntheticImages(users=8, size=32, coarse=3, fine=6, images_per_user=5)
NUM_READ = 3  # images of a dataset that are read
TINY_RUN = (
    "data.users=8", "data.images_per_user=5", "data.split=per_user", "model=linear", "algorithm.cohort_size=2", "algorithm.batch_size=4",
    "engine=reference", "engine.device=cpu", "engine.threads=1", "rounds=2", "evaluate_every=1", "checkpoint_seconds=0",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader: what it reads, and how to call it."""

    name: str
    write: Callable[[Path], None]  # writes valid files
    read: Callable[
        [Path], object
    ]  # reads them; raises ValueError or OSError in one sentence that names a file or setting
    files: str = "**/*"  # that are mutated
    words: tuple[str, ...] = ()  # settings that a sentence may name instead of a file
    allowed: tuple[type[Exception], ...] = ()  # other documented errors
    memory_bytes: int = 512 * MIB  # in addition to what the process has


def write_images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 3), np.uint8)
    rgb = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    rgb.save(folder / "a.jpg", exif=exif)
    rgb.convert("CMYK").save(folder / "cmyk.jpg")
    rgb.convert("L").save(folder / "gray.jpg", progressive=True)
    rgb.save(folder / "a.png")
    rgb.convert("P").save(folder / "palette.png", transparency=0)
    rgb.convert("RGBA").save(folder / "alpha.png")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(folder / "16bit.png")
    rgb.save(folder / "a.gif", save_all=True, append_images=[rgb.rotate(90)])
    rgb.save(folder / "a.webp")
    rgb.save(folder / "a.bmp")
    rgb.save(folder / "a.tif", compression="tiff_lzw")
    Image.fromarray(pixels[..., 0].astype(np.float32)).save(folder / "float.tif")
    rgb.save(folder / "a.ppm")


def read_image(folder: Path) -> object:
    """Decode every image, and return how many could be read."""
    count = 0
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        try:
            decode(data, None, path.name)
            assert decode(data, 8, path.name).pixels_HWC.shape == (8, 8, 3), path.name
        except UnreadableImage:
            continue
        count += 1
    return count


def read_some(manifest: Manifest) -> None:
    """Read the first images of a manifest as a store does, and note problems."""
    assert len(manifest.users) == len(manifest.split) == len(manifest.image)
    for index in manifest.image[:NUM_READ].tolist():
        try:
            data = manifest.source.read(index)
        except OSError:  # which a store notes as a missing image
            continue
        if isinstance(data, bytes):
            try:
                decode(data, 8, manifest.source.name(index))
            except UnreadableImage:
                continue


def dataset(write: Callable[[SyntheticImages, Path], None]) -> Callable[[Path], None]:
    return lambda folder: write(SYNTHETIC, folder)


def write_table_csv(folder: Path) -> None:
    (folder / "x.png").write_bytes(_png(10))
    rows = [["path", "user", "label", "split", "lat", "lon"]]
    rows += [["x.png", f"u{i % 3}", str(i % 2), ("train", "test")[i % 2], "1.5", "-3"] for i in range(6)]
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def write_table_parquet(folder: Path) -> None:
    (folder / "x.png").write_bytes(_png(10))
    rows = [
        {"path": "x.png", "user": f"u{i % 3}", "label": ["a", "b"][: 1 + i % 2], "split": "train"} for i in range(6)
    ]
    pq.write_table(pa.Table.from_pylist([row | {"lat": 1.0, "lon": 2.0} for row in rows]), folder / "images.parquet")


def write_shards(folder: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "val-00000-of-00001", "test-00000-of-00001"):
        rows = [
            {
                "image": {"bytes": _png(k), "path": None},
                "image_id": f"{name}-{k}",
                "user_id": name,
                "labels": ["food", "plant"][: k % 3],
                "fine_grained_labels": ["apple"],
            }
            for k in range(4)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=2)


def _png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value,) * 3).save(file, "PNG")
    return file.getvalue()


def write_cifar(folder: Path) -> None:
    cifar.write_synthetic(SyntheticImages(users=10, size=32, coarse=2, fine=4, images_per_user=4), folder, 10)


def write_cifar_pickles(folder: Path) -> None:
    edition = cifar_files.EDITIONS["cifar-10-python"]
    content = folder / edition.folder
    content.mkdir()
    for file in (*edition.train, edition.test):
        batch = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 1, 0]}
        (content / file).write_bytes(pickle.dumps(batch, protocol=2))
    names = {"label_names": ["cat", "dog"]}
    (content / edition.class_files["class"]).write_bytes(pickle.dumps(names, protocol=2))
    (content / SYNTHETIC_MARKER).touch()


def write_cifar_archive(folder: Path) -> None:
    edition = cifar_files.EDITIONS["cifar-10-python"]
    write_cifar_pickles(folder)
    with tarfile.open(folder / edition.archive, "w:gz") as archive:
        archive.add(folder / edition.folder, edition.folder)
    for path in (folder / edition.folder).iterdir():
        path.unlink()
    (folder / edition.folder).rmdir()


def read_cifar(folder: Path) -> None:
    read_some(cifar.read_manifest(folder, classes=10, users=4, alpha=1.0))


def write_splits(folder: Path) -> None:
    rows = [["user_id", "image_id", "class"], *([str(i % 3), str(i), str(i % 2)] for i in range(8))]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    (folder / "federated_train_alpha_0.10.csv").write_text(text.getvalue())
    with zipfile.ZipFile(folder / "splits.zip", "w") as archive:
        archive.writestr("a/federated_train_alpha_0.10.csv", text.getvalue())
    arrays: dict[str, Any] = {"cifar10_alpha_0.10": np.arange(8) % 3}
    np.savez(folder / "splits.npz", **arrays)


def read_splits(folder: Path) -> None:
    labels = np.arange(8) % 2
    for name in ("federated_train_alpha_0.10.csv", "splits.zip", "splits.npz"):
        owners = released(folder / name, labels, "cifar10", 0.1)
        assert owners.shape == labels.shape


def write_stores(folder: Path) -> None:
    raw = folder.parent / "raw of stores"
    raw.mkdir()
    write_table_csv(raw)
    manifest = folders.read_manifest(raw)
    for encoding in ("raw", "jpeg"):
        write_store(manifest, folder / encoding, 8, encoding=encoding, processes=1)


def read_stores(folder: Path) -> None:
    for encoding in ("raw", "jpeg"):
        population = open_population(folder / encoding)
        population.pixels(np.arange(len(population)))
        population.histograms()
        population.split("train")


def verify_stores(folder: Path) -> None:
    for encoding in ("raw", "jpeg"):
        verify(folder / encoding)
        read_stores(folder)


def read_restamped_stores(folder: Path) -> None:
    """Read stores of the format without checksums of images, where sizes and checksums agree with the mutated files."""
    for encoding in ("raw", "jpeg"):
        path = folder / encoding / "meta.json"
        meta = json.loads(path.read_text()) | {"version": UNCHECKED_VERSION}
        for table in (meta["bytes"], meta["crc32"]):
            table.pop(CHECKSUMS_FILE)
        for name in meta["bytes"]:
            data = (folder / encoding / name).read_bytes()
            meta["bytes"][name], meta["crc32"][name] = len(data), zlib.crc32(data)
        path.write_text(meta_text(meta))
    read_stores(folder)


def write_journal(folder: Path) -> None:
    (folder / "store").mkdir()
    metadata = {"version": 1, "encoding": "raw", "images": 300, "shape": [2, 2]}
    builder = StoreBuilder(folder, metadata)
    builder.images.write_bytes(builder._header() + bytes(300 * 12))
    size = len(builder._header())
    lines = [metadata, *({"end": size + 128 * 12 * k, "crc": 7, "unreadable": [], "notes": []} for k in (1, 2))]
    (folder / "journal.jsonl").write_text("".join(map(_format_line, lines)))


def read_journal(folder: Path) -> None:
    builder = StoreBuilder(folder, {"version": 1, "encoding": "raw", "images": 300, "shape": [2, 2]})
    builder.resume()
    assert builder.images.stat().st_size == builder.state["end"]
    for chunk in builder.chunks:  # what the writer uses of them
        [(row, str(kind)) for row, kind in [*chunk["unreadable"], *chunk["notes"]]]
        assert 0 <= chunk["crc"] < 2**32


def write_hdf5(folder: Path) -> None:
    for name, storage in (("pfl.h5", {}), ("chunked.h5", {"chunks": (1, 4, 4, 3), "compression": "gzip"})):
        with h5py.File(folder / name, "w") as file:
            for split, user, count in (("train", "ann", 3), ("train", "bob", 1), ("val", "cid", 2), ("test", "dan", 1)):
                group = file.create_group(f"/{split}/{user}")
                for task in ("labels", "fine_grained_labels"):
                    group[f"{task}_row"] = np.arange(count, dtype=np.uint16)
                    group[f"{task}_col"] = np.arange(count, dtype=np.uint8) % 2
                group["image_ids"] = np.array([f"{user}{i}" for i in range(count)], "S")
                group.create_dataset("images", data=np.zeros((count, 4, 4, 3), np.uint8), **storage)
            file["/metadata/label_mapping"] = json.dumps({"animal": 0, "food": 1})
            file["/metadata/fine_grained_label_mapping"] = json.dumps({"cat": 0, "apple": 1})
    with h5py.File(folder / "ml.h5", "w") as file:
        for split, user in (("train", "ann"), ("val", "bob"), ("test", "cid")):
            group = file.create_group(f"/{split}/{user}")
            group["labels"] = group["fine_grained_labels"] = np.array(["food|plant", ""], "S")
            group["image_ids"] = np.array(["a", "b"], "S")
            group["images"] = np.zeros((2, 4, 4, 3), np.uint8)
        file["/metadata/label_counter"] = file["/metadata/fine_grained_label_counter"] = '{"food": 3, "plant": 1}'


def read_hdf5(folder: Path) -> None:
    for name in ("pfl.h5", "chunked.h5", "ml.h5"):
        population = open_population(folder / name) if name == "pfl.h5" else open_hdf5(folder / name)
        population.pixels(np.arange(len(population)))
        population.histograms()


def write_archives(folder: Path) -> None:
    content = {"images/a.txt": b"a" * 200, "images/b/c.txt": b"b" * 3000, "readme": b""}
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    for name in ("a.tar", "a.tar.gz"):
        with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as tar:
            for member, data in content.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def read_archives(folder: Path) -> None:
    into = folder / "into"
    before = sorted(os.listdir(folder.parent))
    into.mkdir()
    for name in ("a.zip", "a.tar", "a.tar.gz"):
        extract(folder / name, into)
    assert sorted(os.listdir(folder.parent)) == before, "a member left the folder"


def write_run(folder: Path) -> None:
    """Train a run with client states and every optional file."""
    stateful = ("correction=scaffold", "server_optimizer=adam", "callbacks=[early_stopping]")
    for name, extra in (("run", stateful), ("personal", ("personal_layers=head",))):
        config = compose_config([*TINY_RUN, *extra, f"folder={folder.parent / 'new' / name}"])
        train_from(config, folder.parent / "new" / name)
        (folder.parent / "new" / name / ".lock").unlink()
    os.rename(folder.parent / "new" / "run", folder / "run")
    os.rename(folder.parent / "new" / "personal", folder / "personal")
    path = folder / "run"
    (path / "checksums.json").unlink()  # so that a changed file is read, as of older versions
    (path / "privacy.json").write_text(
        json.dumps({"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "accountant": "pld"})
    )
    (folder / "personal" / "failed.txt").write_text("the disk is full\n")


def read_report(folder: Path) -> None:
    runs = find_runs([str(folder)])
    html(runs, "", sections(runs))
    for run in runs:
        html([run], "", sections([run]))
        run.user_scores()


@dataclass(frozen=True)
class Request:
    """What an endpoint of the dashboard uses of a request."""

    query_params: Any


def read_dashboard(folder: Path) -> None:
    from starlette.datastructures import QueryParams

    index = RunIndex(folder, refresh_seconds=0)
    dashboard = Dashboard(index, "runs")
    dashboard.runs(Request(QueryParams("")))  # type: ignore[arg-type]
    ids = "&".join(f"run={run_id}" for run_id in index.runs)
    for x in ("round", "seconds"):
        dashboard.curves(Request(QueryParams(f"{ids}&x={x}&y=accuracy&y=loss&y=train_loss")))  # type: ignore[arg-type]
    for run_id in index.runs:
        dashboard.run(Request(QueryParams(f"run={run_id}")))  # type: ignore[arg-type]
    index.changes("")


def read_resumed(folder: Path) -> None:
    """Continue both runs for a round."""
    for name in ("run", "personal"):
        path = folder / name
        settings = read_settings(path) | {"rounds": 3, "checkpoint_seconds": 1000.0}
        _as_command(lambda settings=settings, path=path: check_complete(path / CONFIG_FILE, settings))  # type: ignore[misc]
        _as_command(lambda settings=settings, path=path: train_from(settings, path, resume=True))  # type: ignore[misc]


def read_components(folder: Path) -> None:
    """Build everything that the settings of a run describe, as a resumed run does before it reads its checkpoint."""
    for name in ("run", "personal"):
        settings = read_settings(folder / name)
        check_complete(folder / name / CONFIG_FILE, settings)
        _as_command(lambda settings=settings: _build_all(settings))  # type: ignore[misc]


def _build_all(settings: Any) -> None:
    options = build.train_options(settings)
    build.build_algorithm(settings)
    build.build_preprocess(settings)
    for slot in ("tracker", "callback", "metric"):
        for description in options[f"{slot}s"]:
            build_component(slot, description)


def _as_command(call: Callable[[], object]) -> None:
    """Turn the errors of settings and of memory into sentences, as the command does."""
    try:
        call()
    except DivergenceError:  # documented: the weights that were loaded are not finite after a round
        return
    except Exception as error:
        if is_config_error(error) or is_out_of_memory(error):
            raise ValueError(format_error(error)) from error
        raise


def read_checkpoints(folder: Path) -> None:
    for name in ("run", "personal"):
        path = folder / name
        loaded = checkpoint.load(path / "checkpoint.safetensors", CPU)
        store = ClientStateStore(path / "clients.bin", CPU, MIB, loaded.clients)
        try:
            for client_id in islice(list(store), 100):
                store.get(client_id)
            store[1_000_000] = {"x": torch.zeros(3)}
            store.flush()
        finally:
            store.close()


def write_weights(folder: Path) -> None:
    state = build_model("linear", 3, size=4, seed=0).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "weights.safetensors")
    torch.save(state, folder / "weights.pth")


def read_weights(folder: Path) -> None:
    for name in ("weights.safetensors", "weights.pth"):
        load_pretrained(build_model("linear", 3, size=4, seed=0), folder / name)


def write_messages(folder: Path) -> None:
    values = io.BytesIO()
    np.save(values, np.zeros(51, np.float32))
    (folder / "values.npy").write_bytes(values.getvalue())
    config = {"round": 0, "client_id": 1, "num_examples": 4, "loss": 0.5, "norm": 0.0}
    array = {"dtype": "float32", "shape": [51], "stype": "numpy.ndarray"}
    (folder / "reply.json").write_text(json.dumps({"config": config, "update": {"values": array}}))
    info = {"name": "ann", "user_id": 3, "num_examples": 4, "num_test_examples": 1, "classes": ["a", "b"], "multi": 0}
    (folder / "info.json").write_text(json.dumps(info | {"height": 8, "width": 8, "class_counts": [1, 3]}))
    for name, compressor in (("topk", TopK(0.1)), ("int8", Int8(16))):
        arrays = compressor.encode(torch.arange(51.0), np.random.default_rng(0))
        (folder / f"{name}.json").write_text(json.dumps({key: tensor.tolist() for key, tensor in arrays.items()}))


def read_messages(folder: Path) -> None:
    """Decode a reply and a client's description as the server does; what Flower itself refuses cannot arrive."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from manyeyes.flower.app import FederationConfig
    from manyeyes.flower.engine import REPLY_TYPES
    from manyeyes.flower.members import read_client_info, resolve_members
    from manyeyes.flower.messages import CONFIG, from_record, parse_config

    data = (folder / "values.npy").read_bytes()
    try:
        reply, info = (json.loads((folder / name).read_text()) for name in ("reply.json", "info.json"))
        arrays = ArrayRecord(
            {str(k): Array(a["dtype"], tuple(a["shape"]), a["stype"], data) for k, a in reply["update"].items()}
        )
        content = RecordDict({CONFIG: ConfigRecord(reply["config"]), "update": arrays})
        description = RecordDict({CONFIG: ConfigRecord(info)})
    except Exception:
        return
    parse_config(content, REPLY_TYPES)
    from_record(content.get("update"), {"values": (torch.float32, (51,))})
    reported = read_client_info(description, FederationConfig(), True)
    members, _, _ = resolve_members({1: reported, 2: reported}, FederationConfig())
    members.population()


def read_uploads(folder: Path) -> None:
    """Decode compressed updates of the right types and shapes with any values."""
    import math

    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from manyeyes.core.state import RoundContext
    from manyeyes.flower.engine import GridEngine
    from manyeyes.flower.messages import to_record

    for name, compressor, kinds in (
        ("topk", TopK(0.1), {"indices": torch.int32, "values": torch.float32}),
        ("int8", Int8(16), {"values": torch.int8, "scales": torch.float32}),
    ):
        specs = {
            key: (t.dtype, tuple(t.shape))
            for key, t in compressor.encode(torch.ones(51), np.random.default_rng(0)).items()
        }
        try:
            content = json.loads((folder / f"{name}.json").read_text())
            arrays = {key: torch.tensor(values).to(kinds[key]) for key, values in content.items()}
        except Exception:
            continue
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # which a message has
        message = Message(RecordDict({"update": to_record(arrays)}), 1, "train")
        engine = GridEngine.__new__(GridEngine)
        setup: Any = type("Setup", (), {"device": CPU, "model": type("Model", (), {"num_shared": 51})})
        engine.setup, engine._is_variance_W = setup, torch.zeros(51, dtype=torch.bool)
        context = RoundContext(None, 0.1, None, None, None, math.inf, compressor=compressor)  # type: ignore[arg-type]
        assert isinstance(message.content["update"], ArrayRecord)
        engine._read_tensors(message, context, specs, torch.zeros(51))


def write_members(folder: Path) -> None:
    member = {"name": "ann", "client_id": 0, "num_examples": 4, "num_test_examples": 1}
    data = {"classes": ["a", "b"], "multi": False, "height": 8, "width": 8}
    members = {"all": [member, member | {"name": "bob", "client_id": 1}], "data": data, "target_distribution": []}
    (folder / "config.yaml").write_text(json.dumps({"federation": {"members": members}}))


def read_members(folder: Path) -> None:
    from manyeyes.flower.app import FederationConfig
    from manyeyes.flower.registry import ClientRegistry
    from manyeyes.flower.server import _gather_members

    registry = ClientRegistry(None, FederationConfig(resume=str(folder)), False)  # type: ignore[arg-type]
    _gather_members(registry, None, folder)  # type: ignore[arg-type]
    registry.members.population()


def _invalid_reply() -> tuple[type[Exception], ...]:
    from manyeyes.flower.messages import InvalidReply

    return (InvalidReply,)


DATASET_WORDS = ("raters", "split", "construct", "alpha", "users", "min_ratings", "partition")


def targets() -> Iterator[Target]:
    """Yield every target."""
    yield Target("image", write_images, read_image, memory_bytes=4096 * MIB)
    yield Target("folder", dataset(folders.write_synthetic), lambda raw: read_some(folders.read_manifest(raw)))
    yield Target("csv", write_table_csv, lambda raw: read_some(folders.read_manifest(raw)), "*.csv", ("split",))
    yield Target(
        "parquet", write_table_parquet, lambda raw: read_some(folders.read_manifest(raw)), "*.parquet", ("split",)
    )
    yield Target("flair", dataset(flair.write_synthetic), lambda raw: read_some(flair.read_manifest(raw)), "label*")
    shards = flair_huggingface.read_manifest
    yield Target("flair_huggingface", write_shards, lambda raw: read_some(shards(raw)), "*.parquet")
    yield Target(
        "flickr_aes",
        dataset(flickr_aes.write_synthetic),
        lambda raw: read_some(flickr_aes.read_manifest(raw, raters=2, min_ratings=2, min_per_score=0)),
        "*.csv",
        DATASET_WORDS,
    )
    inat = inaturalist.read_manifest
    yield Target(
        "inaturalist_csv", dataset(inaturalist.write_synthetic), lambda raw: read_some(inat(raw)), "inaturalist-user*/*"
    )
    yield Target(
        "inaturalist_json",
        dataset(inaturalist.write_synthetic),
        lambda raw: read_some(inat(raw, construct=True, per_class=2, split="geo_100")),
        "*.json",
    )
    yield Target(
        "landmarks_csv",
        dataset(landmarks.write_synthetic),
        lambda raw: read_some(landmarks.read_manifest(raw)),
        "federated*",
    )
    landmark_filters = landmarks.Filters(1, 1, 1, 1, 2)
    yield Target(
        "landmarks_tables",
        dataset(landmarks.write_synthetic),
        lambda raw: read_some(landmarks.read_manifest(raw, construct=True, filters=landmark_filters)),
        "train_*.csv",
    )
    yield Target("cifar_binary", write_cifar, read_cifar, words=DATASET_WORDS)
    yield Target("cifar_pickle", write_cifar_pickles, read_cifar, words=DATASET_WORDS)
    yield Target("cifar_archive", write_cifar_archive, read_cifar, words=DATASET_WORDS)
    yield Target("splits", write_splits, read_splits, words=DATASET_WORDS)
    yield Target("store", write_stores, read_stores, words=("split",))
    yield Target("store_verify", write_stores, verify_stores)
    yield Target("store_restamped", write_stores, read_restamped_stores, "*/[eio]*", words=("split",))
    yield Target("store_journal", write_journal, read_journal, "journal.jsonl")
    yield Target("hdf5", write_hdf5, read_hdf5)
    yield Target("archive", write_archives, read_archives)
    yield Target("report", write_run, read_report, "*/*.[jytc]*")
    yield Target("dashboard", write_run, read_dashboard, "*/*.[jytc]*")
    yield Target("checkpoint", write_run, read_checkpoints, "*/c*.[bs]*")
    yield Target("resume", write_run, read_resumed, "*/[cm]*.[bsj]*")
    yield Target("run_config", write_run, read_components, "*/config.yaml", SETTING_GROUPS)
    yield Target("resume_config", write_run, read_resumed, "*/config.yaml", SETTING_GROUPS)
    yield Target("weights", write_weights, read_weights)
    yield Target("messages", write_messages, read_messages, allowed=_invalid_reply())
    yield Target("uploads", write_messages, read_uploads, "[ti]*.json", allowed=_invalid_reply())
    yield Target("members", write_members, read_members)


SETTING_GROUPS = (*GROUPS, "preprocess", *(declared.name for declared in fields(RunConfig)))
