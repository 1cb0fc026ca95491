"""Mutations: from a valid file to a damaged or a malicious one, with knowledge of its format.

Every function takes the bytes of a valid file and a random generator, and returns other bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

Mutation = Callable[[bytes, random.Random], bytes]
DEPTH = 20_000  # of nesting; any recursive parser fails
LONG_TEXT = "x" * 5000
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    -5,
    1,
    2**31,
    2**53,
    2**63,
    2**64,
    10**23,
    -(10**23),
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e300,
)
STRANGE_FLOATS = (float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "NaN",
    "-1",
    "null",
    "0",
    "../../../etc/passwd",
    "/dev/zero",
    "\0",
    "\x1b[2J",
    "two\nlines",
    "ü",
    LONG_TEXT,
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *STRANGE_FLOATS,
    *TEXTS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": 1},
    [1, "a"],
)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes without knowledge of their format."""
    choice = rng.randrange(10)
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 4, 8, 64, 4096)))
    if choice == 0:
        return data[:start]
    if choice == 1:
        return b""
    if choice == 2:
        return data[:start] + bytes(end - start) + data[end:]
    if choice == 3:
        return data[:start] + rng.randbytes(end - start) + data[end:]
    if choice == 4:
        return data[:start] + data[end:]
    if choice == 5:
        return data[:start] + data[start:end] * rng.choice((2, 3, 50)) + data[end:]
    if choice == 6:
        return data[:start] + rng.choice((b"\0", b"\xff\xfe", b"\xf0\x9f", b'"', b"\n", b",", b"\r")) + data[start:]
    if choice == 7:
        return rng.choice((data + data, data + b"\0" * 100, b"\xef\xbb\xbf" + data, data[::-1]))
    if choice == 8:
        return _extreme_integer(data, rng)
    return flip_bits(data, rng)


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3, 10)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _extreme_integer(data: bytes, rng: random.Random) -> bytes:
    """Replace a few bytes with an extreme integer of 1 to 8 bytes."""
    number = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)))
    packed = struct.pack(rng.choice("<>") + "q", number)[: rng.choice((1, 2, 4, 8))]
    start = rng.randrange(len(data) + 1)
    return data[:start] + packed + data[start + len(packed) :]


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    """Damage text: numbers, encodings, lines."""
    text = data.decode("utf-8", errors="replace")
    choice = rng.randrange(6)
    if choice == 0:
        numbers = list(re.finditer(r"-?\d+(\.\d+)?", text))
        if not numbers:
            return mutate_bytes(data, rng)
        match = rng.choice(numbers)
        return (text[: match.start()] + str(rng.choice(VALUES)) + text[match.end() :]).encode(errors="replace")
    if choice == 1:
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-7")))
    if choice == 2:
        return text.replace(
            "\n", rng.choice(("", "\r", "\r\n", "\n\n", "\x0b", "\u2028")), rng.choice((1, -1))
        ).encode()
    lines = text.split("\n")
    index = rng.randrange(len(lines))
    if choice == 3:
        lines.pop(index)
    elif choice == 4:
        lines.insert(index, rng.choice(lines))
    else:
        rng.shuffle(lines)
    return "\n".join(lines).encode()


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """Return nested data with one place changed: removed, repeated, of another type, or with a strange value."""
    paths = [*_paths(tree)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = _change(tree, rng.choice(paths), rng)
        paths = [*_paths(tree)]
    return tree


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from _paths(tree[key], (*path, key))
    elif isinstance(tree, list):
        for index, item in enumerate(tree[:50]):
            yield from _paths(item, (*path, index))


def _change(tree: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    if path:
        first, *rest = path
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        if rest or rng.random() < 0.6:
            copy[first] = _change(tree[first], tuple(rest), rng)
            return copy
        return _change_member(copy, first, rng)
    choice = rng.randrange(8)
    if choice == 0:
        return [tree]
    if choice == 1:
        return {"name": tree}
    if choice == 2:
        return str(tree)
    if choice == 3 and isinstance(tree, list | str):
        return tree * rng.choice((0, 2, 100))
    if choice == 4 and isinstance(tree, int | float):
        return rng.choice((-tree, tree + 1, tree * 10**20 if tree == tree and abs(tree) < 1e300 else 0, str(tree)))
    if choice == 5 and isinstance(tree, str) and tree:
        return (
            rng.choice((tree[:-1], tree + "\0", tree.upper(), tree.encode(), [*tree[:20]])) if tree.isascii() else tree
        )
    return rng.choice(VALUES)


def _change_member(container: Any, key: Any, rng: random.Random) -> Any:
    choice = rng.randrange(3)
    value = container.pop(key)
    if isinstance(container, list):
        container[key:key] = [[], [value, value], [rng.choice(VALUES), value]][choice]
    elif choice == 1:
        container[f"{key}x"] = value
    elif choice == 2:
        container |= {key: value, rng.choice(("unknown", "", "name", "0", "a.b")): rng.choice(VALUES)}
    return container


def to_json(tree: Any) -> bytes:
    return json.dumps(_without_bytes(tree)).encode()


def _without_bytes(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key): _without_bytes(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_bytes(value) for value in tree]
    return tree.decode("latin-1") if isinstance(tree, bytes) else tree


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    choice = rng.randrange(10)
    if choice == 0:
        return mutate_bytes(data, rng)
    if choice == 1:
        return mutate_text(data, rng)
    if choice == 2:
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ("[", "")))
        nested = f"{opening * DEPTH}1{closing * DEPTH}"
        return nested.encode() if rng.random() < 0.5 else _insert_value(data, nested, rng)
    if choice == 3:
        return _insert_value(data, rng.choice(("9" * 5000, "1e999", "-0", "NaN", '"\\ud800"', '"\\u0000"')), rng)
    return to_json(mutate_tree(json.loads(data), rng))


def _insert_value(data: bytes, value: str, rng: random.Random) -> bytes:
    """Put text in the place of one value of a JSON document."""
    text = data.decode()
    values = list(re.finditer(r'-?\d+(?:\.\d+)?|"[^"\\]*"(?!\s*:)|true|false|null', text))
    if not values:
        return value.encode()
    match = rng.choice(values)
    return (text[: match.start()] + value + text[match.end() :]).encode()


def mutate_json_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    index = rng.randrange(max(1, len(lines) - 1))
    choice = rng.randrange(6)
    if choice == 0:
        return mutate_bytes(data, rng)
    if choice == 1:
        return mutate_text(data, rng)
    if choice == 2:
        lines.insert(index, lines[-2] if len(lines) > 1 else b"{}")
    else:
        lines[index] = mutate_json(lines[index], rng).replace(b"\n", b" ")
    return b"\n".join(lines)


def mutate_yaml(data: bytes, rng: random.Random) -> bytes:
    choice = rng.randrange(10)
    if choice == 0:
        return mutate_bytes(data, rng)
    if choice == 1:
        return mutate_text(data, rng)
    if choice == 2:
        return data + _alias_bomb(rng)
    if choice == 3:
        text = rng.choice(
            ("[" * DEPTH, "- " * 500 + "1", "a: {" * DEPTH, "? " * DEPTH, "&a [*a]", "!" * DEPTH, "{" * 900)
        )
        return text.encode() if rng.random() < 0.5 else data + b"\nextra: " + text.encode()
    if choice == 4:
        text = rng.choice(YAML_SCALARS)
        return _insert_yaml(data, text, rng)
    if choice == 5:
        return data + rng.choice(
            (b"\n---\na: 1\n", b"\n...\n", b"\n<<: {a: 1}\n", b"\n? [1, 2]\n: 3\n", b"\n\tx: 1\n", b"\n1: 2\n")
        )
    tree = mutate_tree(yaml.safe_load(data), rng)
    return yaml.safe_dump(_without_bytes(tree), sort_keys=False).encode(errors="replace")


YAML_SCALARS = (
    "!!python/object/apply:os.system [true]", "!!binary 4pyT", "!!set {a, b}", "!!timestamp 2001-01-01", "!!float abc",
    "!!int abc", "2001-01-01", "9999-99-99", "0x" + "f" * 5000, "9" * 5000, "1:59:59" * 50, ".inf", ".nan", "~", "!!omap [a: 1]",
    "!unknown x", "&anchor *anchor", "*missing", "${rounds}", "${oc.env:HOME}", "???", "'\\0'", '"\\x00"', "1_000", "1e5", "0o17",
)  # fmt: skip


def _insert_yaml(data: bytes, value: str, rng: random.Random) -> bytes:
    text = data.decode()
    values = list(re.finditer(r"(?<=: )[^\n{\[]+", text))
    if not values:
        return value.encode()
    match = rng.choice(values)
    return (text[: match.start()] + value + text[match.end() :]).encode()


def _alias_bomb(rng: random.Random) -> bytes:
    """Return a few hundred bytes that become billions of values where aliases are followed."""
    levels, width = rng.choice(((9, 9), (30, 2), (6, 20)))
    lines = ["l0: &l0 [x, x]"]
    for level in range(1, levels + 1):
        aliases = ", ".join([f"*l{level - 1}"] * width)
        opening, closing = rng.choice((("[", "]"), ("[", "]")))
        lines.append(f"l{level}: &l{level} {opening}{aliases}{closing}")
    if rng.random() < 0.3:
        lines = [line.replace("[", "{").replace("]", "}") for line in lines[:1]] + [
            f"l{level}: &l{level} {{{', '.join(f'k{k}: *l{level - 1}' for k in range(width))}}}"
            for level in range(1, levels)
        ]
        lines[0] = "l0: &l0 {x: 1}"
    return ("\n" + "\n".join(lines) + "\n").encode()


def mutate_csv(data: bytes, rng: random.Random) -> bytes:
    choice = rng.randrange(8)
    if choice == 0:
        return mutate_bytes(data, rng)
    if choice == 1:
        return mutate_text(data, rng)
    rows = list(csv.reader(io.StringIO(data.decode("utf-8", errors="replace"))))
    index = rng.randrange(len(rows))
    row = rows[index]
    column = rng.randrange(max(1, len(row)))
    if choice == 2:
        rows = [[cell for i, cell in enumerate(cells) if i != column] for cells in rows]
    elif choice == 3:
        row.append(rng.choice(TEXTS))
    elif choice == 4 and row:
        row.pop()
    elif choice == 5:
        rows = [[*cells, *cells[:1]] for cells in rows]
    elif row:
        row[column] = rng.choice((*map(str, VALUES), '"', "a,b", "a\nb", "'", "\ufeff", "x" * 200_000))
    text = io.StringIO()
    csv.writer(text, lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    return text.getvalue().encode(errors="replace")


def mutate_parquet(data: bytes, rng: random.Random) -> bytes:
    choice = rng.randrange(8)
    if choice < 2:
        return mutate_bytes(data, rng)
    table = pq.read_table(io.BytesIO(data))
    index = rng.randrange(table.num_columns)
    name, count = table.column_names[index], len(table)
    if choice == 2:
        table = table.drop_columns([name])
    elif choice == 3:
        table = table.rename_columns([f"{column}x" if column == name else column for column in table.column_names])
    elif choice == 4:
        table = table.slice(0, rng.choice((0, 1, count // 2)))
    elif choice == 5:
        table = table.append_column(rng.choice((name, "extra")), table.column(index))
    else:
        table = table.set_column(index, name, _strange_column(count, rng))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _strange_column(count: int, rng: random.Random) -> pa.Array:
    values: list[Any] = rng.choice(
        (
            [None] * count,
            [-1] * count,
            [0] * count,
            [2**62] * count,
            [1.5] * count,
            [float("nan")] * count,
            ["a"] * count,
            [""] * count,
            [b"\xff"] * count,
            [[1, -7]] * count,
            [[]] * count,
            [None, *[1] * (count - 1)],
            [["a", None]] * count,
            [True] * count,
            [{"bytes": b"x"}] * count,
            [{"bytes": None}] * count,
            [*range(count)],
            [*range(count)][::-1],
            [str(i) for i in range(count)],
            ["\0"] * count,
            ["../../x"] * count,
        )
    )
    array = pa.array(values[:count])
    return array.dictionary_encode() if rng.random() < 0.2 and not pa.types.is_nested(array.type) else array


def mutate_npy(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    length = struct.unpack("<H", data[8:10])[0]
    header, body = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    choice = rng.randrange(5)
    if choice == 0:
        sizes = ", ".join(
            str(rng.choice((0, 1, -1, 4, 2**31, 2**62, 10**30, "1.5", "'a'"))) for _ in range(rng.randrange(6))
        )
        header = re.sub(r"\([^)]*\)", f"({sizes},)" if sizes else "()", header)
    elif choice == 1:
        kinds = ("|O", "<f8", "<i4", ">i8", "<U5", "|V8", "zzz", "|b1", "<f2", "<m8[s]")
        header = re.sub(r"'[<>|][^']*'", f"'{rng.choice(kinds)}'", header)
    elif choice == 2:
        header = header.replace("False", "True")
    elif choice == 3:
        header = rng.choice(
            ("{}", "[]", "1", "(" * 5000, "__import__('os')", "{'shape': 1}", "'" + LONG_TEXT + "'", "")
        )
    else:
        values = np.frombuffer(body[: len(body) // 8 * 8], np.int64).copy()
        if len(values):
            values[rng.randrange(len(values))] = rng.choice((-1, 0, 2**62, -(2**62), 10**9))
        body = values.tobytes() + body[len(body) // 8 * 8 :]
    encoded = header.encode("latin-1")[:65000]
    return (
        data[:6] + rng.choice((b"\1\0", b"\1\0", b"\1\0", b"\7\0")) + struct.pack("<H", len(encoded)) + encoded + body
    )


def mutate_npz(data: bytes, rng: random.Random) -> bytes:
    return mutate_zip(data, rng, mutate_npy)


def mutate_zip(data: bytes, rng: random.Random, mutate_member: Mutation = mutate_bytes) -> bytes:
    choice = rng.randrange(7)
    if choice < 2:
        return mutate_bytes(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))) as archive:
        chosen = rng.randrange(len(members)) if members else -1
        for index, (info, content) in enumerate(members):
            name = info.filename
            if index == chosen:
                if choice == 2:
                    continue
                if choice == 3:
                    content = mutate_member(content, rng)
                if choice == 4:
                    name = strange_name(name, rng)
                if choice == 5:
                    info.external_attr = rng.choice((0o120777, 0o020666, 0o010666, 0)) << 16
                    info.compress_type = zipfile.ZIP_STORED
                    archive.writestr(info, rng.choice((b"/etc/passwd", content)))
                    continue
                if choice == 6:
                    content = bytes(rng.choice((2**20, 2**24)))  # compresses a thousandfold
            archive.writestr(name, content, compress_type=archive.compression)
    return out.getvalue()


def strange_name(name: str, rng: random.Random) -> str:
    names = (
        f"../{name}",
        f"/{name}",
        f"a/../../{name}",
        f"C:{name}",
        f"..\\{name}",
        "",
        ".",
        "a" * 300,
        f"{name}/x",
        "\x1b[2J",
    )
    return rng.choice((*names, "a/" * 3000 + "x", f".extracted/{name}", "ü\u202e.jpg", f"./{name}", f"{name}\\"))


def mutate_tar(data: bytes, rng: random.Random, compressed: bool = False) -> bytes:
    if compressed:
        if rng.random() < 0.3:
            return mutate_bytes(data, rng)
        return gzip.compress(mutate_tar(gzip.decompress(data), rng), mtime=0)
    choice = rng.randrange(7)
    if choice < 2:
        return mutate_bytes(data, rng)
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        members = old.getmembers()
        chosen = rng.randrange(len(members))
        for index, member in enumerate(members):
            content = old.extractfile(member)
            if index == chosen:
                if choice == 2:
                    continue
                if choice == 3:
                    member.name = strange_name(member.name, rng)
                if choice == 4:
                    member.type = rng.choice(
                        (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"Z")
                    )
                    member.linkname = rng.choice(("/etc/passwd", "../x", member.name))
                if choice == 5:
                    member.size = rng.choice((0, 2**40, 8**11 - 1))
                    out.write(member.tobuf(tarfile.GNU_FORMAT))
                    continue
                if choice == 6 and content is not None:
                    content = io.BytesIO(mutate_bytes(content.read(), rng))
                    member.size = len(content.getvalue())
            new.addfile(member, content if member.isreg() else None)
    return out.getvalue()


def mutate_tar_gz(data: bytes, rng: random.Random) -> bytes:
    return mutate_tar(data, rng, compressed=True)


def mutate_hdf5(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mutated.h5")
        path.write_bytes(data)
        with h5py.File(path, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            for _ in range(rng.choice((1, 1, 2))):
                name = rng.choice(names)
                if name in file:
                    _change_hdf5(file, name, rng)
        return path.read_bytes()


def _change_hdf5(file: h5py.File, name: str, rng: random.Random) -> None:
    old = file[name]
    values = old[()] if isinstance(old, h5py.Dataset) else None
    del file[name]
    choice = rng.randrange(9)
    if choice == 0:
        return
    if choice == 1:
        file[name] = rng.choice(
            (h5py.SoftLink("/nowhere"), h5py.ExternalLink("missing.h5", "/x"), h5py.SoftLink(f"/{name}"))
        )
    elif choice == 2:
        file.create_group(name)
    elif choice == 3:
        file[name] = rng.choice(VALUES[:5])
    elif choice == 4 and values is not None and np.ndim(values) and len(values):
        kind = rng.choice(("f8", "i8", "u1", "S3", "i1", "?", "c16"))
        file[name] = np.zeros(np.shape(values), kind)
    elif choice == 5 and values is not None and np.ndim(values):
        file[name] = values[: len(values) // 2] if rng.random() < 0.5 else np.concatenate([values, values])
    elif choice == 6 and isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size:
        values = values.astype(np.int64)
        values.flat[rng.randrange(values.size)] = rng.choice((-1, -(2**62), 2**62, 10**6))
        file[name] = values
    elif choice == 7:
        file[name] = np.full(np.shape(values) if values is not None else 3, rng.choice(STRANGE_FLOATS))
    elif choice == 8:
        file.create_dataset(
            name, shape=rng.choice(((0,), (2**40,), (10**6, 10**6), ())), dtype=rng.choice(("u1", "i8", "S1"))
        )
    else:
        file[name] = rng.choice(("text", b"\xff\xfe", "{}", "[]", "[" * 5000, '{"a": -1}', '{"a": "b", "c": []}'))


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, or the JSON in its metadata."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.get("__metadata__", {})
    if metadata and rng.random() < 0.6:
        key = rng.choice(sorted(metadata))
        header["__metadata__"] = metadata | {key: mutate_json(metadata[key].encode(), rng).decode("latin-1")}
    elif rng.random() < 0.5:
        names = [name for name in header if name != "__metadata__"]
        name = rng.choice(names)
        entry = header.pop(name)
        if rng.random() < 0.5:
            header[rng.choice((f"{name}x", rng.choice(names)))] = entry
        else:
            start, end = entry["data_offsets"]
            size = end - start
            header[name] = rng.choice(
                (
                    entry | {"dtype": "U8", "shape": [size]},
                    entry | {"shape": [1, *entry["shape"]]},
                    entry | {"dtype": "F16"},
                )
            )
    else:
        header = mutate_tree(header, rng)
    encoded = to_json(header)
    return struct.pack("<Q", len(encoded)) + encoded + body


BY_SUFFIX: dict[str, tuple[Mutation, ...]] = {
    ".json": (mutate_json,), ".jsonl": (mutate_json_lines,), ".yaml": (mutate_yaml,), ".csv": (mutate_csv,),
    ".parquet": (mutate_parquet,), ".npy": (mutate_npy,), ".npz": (mutate_npz,), ".zip": (mutate_zip,), ".tar": (mutate_tar,),
    ".gz": (mutate_tar_gz,), ".h5": (mutate_hdf5,), ".safetensors": (mutate_safetensors,), ".txt": (mutate_text, mutate_bytes),
}  # fmt: skip


def mutate(name: str, data: bytes, rng: random.Random) -> bytes:
    """Return a mutation of a file, by its name."""
    mutations = BY_SUFFIX.get(Path(name).suffix, (mutate_bytes,))
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            mutated = rng.choice(mutations)(data, rng)
        except Exception:  # an earlier mutation has damaged what this one needs to parse
            mutated = mutate_bytes(data, rng)
        data = mutated
    return data
