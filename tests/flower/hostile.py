"""Replies that a hostile client sends instead of its true one, with the reason for which the server leaves each out."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from manyeyes.flower.messages import CONFIG
from tests.flower.fake_grid import Change

Misbehavior = Callable[[Message], Message | None]  # the true reply to what is sent instead; None: nothing is sent
Cases = dict[str, tuple[Misbehavior, str]]  # what is sent, and a pattern of the reason


def when_training(misbehave: Misbehavior) -> Change:
    """Return a change of training replies; a new message gets the reply metadata of the true one."""

    def change(task: Message, reply: Message) -> Message | None:
        if task.metadata.message_type != "train":
            return reply
        changed = misbehave(reply)
        return changed if changed is None or changed is reply else Message(changed.content, reply_to=task)

    return change


def one_each_round(cases: Cases) -> Change:
    """Return a change by which a client sends another of the replies in each round."""
    misbehaviors = [misbehave for misbehave, _ in cases.values()]

    def change(task: Message, reply: Message) -> Message | None:
        if task.metadata.message_type != "train":
            return reply
        return misbehaviors[int(task.metadata.group_id) - 1](reply)

    return change


def with_values(reply: Message, values: Any, name: str = "values", record: str = "update") -> Message:
    reply.content[record] = ArrayRecord({name: values if isinstance(values, Array) else Array(np.asarray(values))})
    return reply


def with_config(reply: Message, **values: Any) -> Message:
    reply.content[CONFIG] = ConfigRecord(dict(reply.content.config_records[CONFIG]) | values)
    return reply


def without_value(reply: Message, name: str) -> Message:
    config = dict(reply.content.config_records[CONFIG])
    del config[name]
    reply.content[CONFIG] = ConfigRecord(config)
    return reply


def with_record(reply: Message, name: str, record: Any) -> Message:
    reply.content[name] = record
    return reply


def without_record(reply: Message, name: str) -> Message:
    del reply.content[name]
    return reply


def array_of(reply: Message, name: str = "values", record: str = "update") -> Any:
    array: Any = reply.content.array_records[record][name]
    return array.numpy()


def change_array(change: Callable[[Any], Any], name: str = "values", record: str = "update") -> Misbehavior:
    """Return the misbehavior that sends one of its arrays changed."""

    def misbehave(reply: Message) -> Message:
        array = Array(np.asarray(change(array_of(reply, name, record).copy())))
        reply.content.array_records[record][name] = array
        return reply

    return misbehave


def change_bytes(change: Callable[[bytes], bytes]) -> Misbehavior:
    """Return the misbehavior that sends other bytes under the true type and shape."""

    def misbehave(reply: Message) -> Message:
        array: Any = reply.content.array_records["update"]["values"]
        return with_values(reply, Array(array.dtype, array.shape, array.stype, change(array.data)))

    return misbehave


def described_as(dtype: str = "", shape: tuple[int, ...] = (), stype: str = "") -> Misbehavior:
    """Return the misbehavior that sends the true bytes with another description."""

    def misbehave(reply: Message) -> Message:
        array: Any = reply.content.array_records["update"]["values"]
        return with_values(reply, Array(dtype or array.dtype, shape or array.shape, stype or array.stype, array.data))

    return misbehave


def with_header(shape: tuple[int, ...], descr: str = "<f4", fortran_order: bool = False) -> Misbehavior:
    """Return the misbehavior that sends a file whose header promises another array."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return change_bytes(lambda data: file.getvalue() + data[-64:])


def pickled(data: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return file.getvalue()


def with_header_text(text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def set_at(index: int, value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[index] = value
        return values

    return change


def from_node(node: int) -> Misbehavior:
    """Return the misbehavior of a reply that another node has sent."""

    def misbehave(reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    return misbehave


def failing(reason: str) -> Misbehavior:
    def misbehave(reply: Message) -> Message:
        return Message(Error(0, reason), reply_to=_task_of(reply))

    return misbehave


def _task_of(reply: Message) -> Message:
    """Return a message to which another reply has the metadata of this one."""
    task = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    task.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    task.metadata.__dict__["_group_id"] = reply.metadata.group_id
    return task


FLOAT_MAX = float(np.finfo("f4").max)
VALUES: Cases = {
    "NaN everywhere": (change_array(lambda v: v * np.float32(math.nan)), "its update is not finite"),
    "one NaN": (change_array(set_at(0, math.nan)), "its update is not finite"),
    "one infinity": (change_array(set_at(3, math.inf)), "its update is not finite"),
    "one negative infinity": (change_array(set_at(-1, -math.inf)), "its update is not finite"),
    "the largest float everywhere": (change_array(lambda v: np.full_like(v, FLOAT_MAX)), "its update is not finite"),
    "1e10 everywhere": (change_array(lambda v: np.full_like(v, 1e10)), "max_update_norm is 1e"),
    "a norm of 9e5": (change_array(lambda v: v / np.linalg.norm(v) * 9e5), "is left out.*reject_norm_ratio is 8"),
    "a hundred times its update": (change_array(lambda v: 100 * v), "times the median norm, and reject_norm_ratio"),
    "minus a hundred times its update": (change_array(lambda v: -100 * v), "times the median norm, and reject"),
}
SHAPES: Cases = {
    "one value too few": (change_array(lambda v: v[:-1]), "not float32"),
    "one value too many": (change_array(lambda v: np.append(v, v[:1])), "not float32"),
    "two dimensions": (change_array(lambda v: v[None]), "not float32"),
    "no values": (change_array(lambda v: v[:0]), "not float32"),
    "a scalar": (change_array(lambda v: v[0]), "not float32"),
    "float64": (change_array(lambda v: v.astype("f8")), "float64"),
    "float16": (change_array(lambda v: v.astype("f2")), "float16"),
    "big-endian": (change_array(lambda v: v.astype(">f4")), ">f4|header|bytes that do not match"),
    "integers": (change_array(lambda v: v.astype("i4")), "int32"),
    "complex numbers": (change_array(lambda v: v.astype("c8")), "complex64"),
    "text": (change_array(lambda v: v.astype("S4")), "S4"),
    "records": (change_array(lambda v: v.view([("x", "f4")])), "not float32"),
    "another name": (lambda r: with_values(r, array_of(r), "other"), "the arrays other"),
    "no array": (lambda r: with_record(r, "update", ArrayRecord()), "the arrays  instead of values"),
    "a second array": (
        lambda r: with_record(r, "update", ArrayRecord({n: Array(array_of(r)) for n in ("values", "more")})),
        "the arrays more, values",
    ),
    "metrics for arrays": (lambda r: with_record(r, "update", MetricRecord({"values": 1.0})), "the arrays none"),
    "no update": (lambda r: without_record(r, "update"), "the arrays none"),
}
BYTES: Cases = {
    "a pickle": (change_bytes(pickled), "values of type object"),
    "no bytes": (change_bytes(lambda data: b""), "header that cannot be read"),
    "zeros": (change_bytes(lambda data: bytes(len(data))), "header that cannot be read"),
    "text for a file": (change_bytes(lambda data: b"import os" * 99), "header that cannot be read"),
    "a truncated file": (change_bytes(lambda data: data[:-1]), "bytes that do not match its shape"),
    "half a header": (change_bytes(lambda data: data[:20]), "header that cannot be read"),
    "bytes after the end": (change_bytes(lambda data: data + b"x"), "bytes that do not match its shape"),
    "another version": (
        change_bytes(lambda data: data[:6] + b"\x07\x00" + data[8:]),
        "in version 7.0 of NumPy's format",
    ),
    "a header that runs code": (change_bytes(with_header_text(b"print('x')")), "header that cannot be read"),
    "a nested header": (change_bytes(with_header_text(b"[" * 5000)), "header that cannot be read"),
    "a header of 1e15 values": (with_header((10**15,)), "bytes that do not match its shape"),
    "a negative shape": (with_header((-5,)), "bytes that do not match its shape|header"),
    "a huge item": (with_header((1,), "<U999999999"), "of type|header"),
    "another order": (with_header((5, 3), fortran_order=True), "bytes that do not match its shape"),
    "a format with code": (described_as(stype="pickle"), "the unsupported format 'pickle'"),
    "a false type": (described_as(dtype="float64"), "of type float32"),
    "a false shape": (described_as(shape=(10**12,)), "of type float32 .1000000000000."),
}
PLAIN_VALUES: Cases = {
    "an empty reply": (lambda r: with_record(without_record(r, CONFIG), "x", ConfigRecord()), "no config record"),
    "metrics for a config": (lambda r: with_record(r, CONFIG, MetricRecord({"round": 1})), "no config record"),
    "no round": (lambda r: without_value(r, "round"), "round as NoneType, not int"),
    "no client": (lambda r: without_value(r, "client_id"), "client_id as NoneType"),
    "no loss": (lambda r: without_value(r, "loss"), "loss as NoneType, not float"),
    "no norm": (lambda r: without_value(r, "norm"), "norm as NoneType, not float"),
    "no number of images": (lambda r: without_value(r, "num_examples"), "num_examples as NoneType, not int"),
    "an earlier round": (lambda r: with_config(r, round=0), "an update of round 1"),
    "a later round": (lambda r: with_config(r, round=10**6), "an update of round 1000001"),
    "a negative round": (lambda r: with_config(r, round=-1), "an update of round 0"),
    "a round of 2^63": (lambda r: with_config(r, round=2**63 - 1), "an update of round 9223372036854775808"),
    "a round in text": (lambda r: with_config(r, round="1"), "round as str"),
    "a list of rounds": (lambda r: with_config(r, round=[1, 2]), "round as list"),
    "another client": (lambda r: with_config(r, client_id=0), "as client 0"),
    "an unknown client": (lambda r: with_config(r, client_id=-7), "as client -7"),
    "100,000 images": (lambda r: with_config(r, num_examples=100_000), "reports 100000 images, and reported 9 before"),
    "one image more": (lambda r: with_config(r, num_examples=10), "reports 10 images, and reported 9 before"),
    "no images": (lambda r: with_config(r, num_examples=0), "reports 0 images"),
    "a negative number of images": (lambda r: with_config(r, num_examples=-9), "reports -9 images"),
    "a fraction of images": (lambda r: with_config(r, num_examples=9.0), "num_examples as float, not int"),
    "a loss in text": (lambda r: with_config(r, loss="low"), "loss as str, not float"),
    "a loss of NaN": (lambda r: with_config(r, loss=math.nan), "out of range"),
    "an infinite loss": (lambda r: with_config(r, loss=math.inf), "out of range"),
    "a negative loss": (lambda r: with_config(r, loss=-1.0), "out of range"),
    "a loss of 1e300": (lambda r: with_config(r, loss=1e300), "out of range"),
    "a norm of NaN": (lambda r: with_config(r, norm=math.nan), "out of range"),
    "a negative norm": (lambda r: with_config(r, norm=-1.0), "out of range"),
    "an infinite norm": (lambda r: with_config(r, norm=math.inf), "out of range"),
}
DELIVERY: Cases = {
    "another node's reply": (from_node(99), "node 99 replied in its place"),
    "a failure": (failing("Traceback:\nsecret"), "it failed: Traceback:$"),
    "a failure without a reason": (failing(" \n "), "it failed: "),
    "a failure of a megabyte": (failing("x" * 10**6), "it failed: x{200}$"),
    "a failure that moves the cursor": (failing("\x1b[2Jgone"), r"it failed: \?\[2Jgone$"),
}
INT8: Cases = {
    "a step of -128": (change_array(set_at(0, -128)), "a value below -127 steps"),
    "a scale of NaN": (change_array(set_at(0, math.nan), "scales"), "a scale that is negative or not finite"),
    "an infinite scale": (change_array(set_at(0, math.inf), "scales"), "a scale that is negative or not finite"),
    "a negative scale": (change_array(lambda s: -s - 1, "scales"), "a scale that is negative or not finite"),
    "the largest scale": (change_array(lambda s: s * 0 + FLOAT_MAX, "scales"), "not finite|max_update_norm"),
    "a scale too few": (change_array(lambda s: s[1:], "scales"), "scales of type float32"),
    "a billion scales": (change_array(lambda s: np.zeros(10**6, "f4"), "scales"), "scales of type float32 .1000000."),
    "no scales": (lambda r: with_values(r, array_of(r)), "the arrays values instead of scales, values"),
    "floats for steps": (change_array(lambda v: v.astype("f4")), "values of type float32"),
}
TOPK: Cases = {
    "an index twice": (change_array(lambda i: np.full_like(i, 1), "indices"), "not in ascending order, each once"),
    "an index of -1": (change_array(set_at(0, -1), "indices"), "an index outside 0..578"),
    "the smallest index": (change_array(set_at(0, -(2**31)), "indices"), "an index outside 0..578"),
    "an index behind the end": (change_array(set_at(-1, 579), "indices"), "an index outside 0..578"),
    "the largest index": (change_array(set_at(-1, 2**31 - 1), "indices"), "an index outside 0..578"),
    "indices in descending order": (change_array(lambda i: i[::-1].copy(), "indices"), "not in ascending order"),
    "indices of 64 bits": (change_array(lambda i: i.astype("i8"), "indices"), "indices of type int64"),
    "too many indices": (change_array(lambda i: np.arange(579, dtype="i4"), "indices"), "indices of type int32 .579."),
    "no indices": (lambda r: with_values(r, array_of(r)), "the arrays values instead of indices, values"),
    "a value of NaN": (change_array(set_at(0, math.nan)), "its update is not finite"),
}
BF16: Cases = {
    "the bits of NaN": (change_array(set_at(0, 0x7FC0)), "its update is not finite"),
    "the bits of infinity": (change_array(set_at(0, 0x7F80)), "its update is not finite"),
    "float32": (change_array(lambda v: v.astype("f4")), "values of type float32"),
}
UPLOADS: Cases = {
    "no upload": (lambda r: without_record(r, "upload"), "the arrays none instead of upload"),
    "an upload of NaN": (change_array(lambda v: v * np.float32(math.nan), "upload", "upload"), "is not finite"),
    "a long upload": (change_array(lambda v: np.full_like(v, 1e10), "upload", "upload"), "max_update_norm is 1e"),
    "an upload of another shape": (change_array(lambda v: v[1:], "upload", "upload"), "upload of type float32"),
}
SETTINGS: dict[str, tuple[str, Cases]] = {  # of the run in which each kind is sent
    "values": ("", VALUES),
    "shapes": ("", SHAPES),
    "bytes": ("", BYTES),
    "plain values": ("", PLAIN_VALUES),
    "delivery": ("", DELIVERY),
    "int8": ("compressor=int8 compressor.block_size=16", INT8),
    "top-k": ("compressor=topk compressor.fraction=0.2", TOPK),
    "bf16": ("compressor=bf16", BF16),
    "uploads": ("algorithm=scaffold", UPLOADS),
}
