"""Messages of openpi's protocol: the same bytes as its own, and nothing but bounded data comes in."""

from __future__ import annotations

import numpy as np
import pytest

msgpack = pytest.importorskip("msgpack", reason="pip install 'replan[remote]'")
from replan.eval.remote import wire  # noqa: E402

MESSAGE = {
    "observation/image": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    "observation/state": np.linspace(-1, 1, 8, dtype=np.float32),
    "prompt": "pick up the cup",
    "server_timing": {"infer_ms": 1.5, "steps": np.int64(4), "ok": np.bool_(True)},
    "window": [1, 2, None],
}


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and np.array_equal(a, b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0)


def test_messages_come_back_as_they_were_and_can_be_written_into():
    read = wire.unpack(wire.pack(MESSAGE))
    assert equal(read, MESSAGE)
    read["observation/image"][0] = 7


def test_bytes_are_those_of_openpis_own_packing():
    openpi = pytest.importorskip("openpi_client.msgpack_numpy")
    assert wire.pack(MESSAGE) == openpi.packb(MESSAGE)
    assert equal(openpi.unpackb(wire.pack(MESSAGE)), MESSAGE)


@pytest.mark.parametrize("value", [np.array([{}]), np.array(["a"]), np.zeros(2, complex), object(), {1, 2}])
def test_what_only_pickle_could_carry_is_not_sent(value):
    with pytest.raises(wire.WireError):
        wire.pack({"x": value})


def array(**changes):
    whole = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}
    return {**whole, **{key.encode(): value for key, value in changes.items()}}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"x": array(dtype="|O")}, "numbers and booleans"),
        ({"x": array(dtype="<U2")}, "numbers and booleans"),
        ({"x": array(dtype="|V4")}, "numbers and booleans"),
        ({"x": array(dtype="f4,O")}, "numbers and booleans"),
        ({"x": array(dtype=[["a", "<f4"]])}, "NumPy name"),
        ({"x": array(dtype="no")}, "NumPy name"),
        ({"x": array(shape=[3])}, "as many bytes"),
        ({"x": array(shape=[-1, -2])}, "whole numbers"),
        ({"x": array(shape=[0, 2**62], data=b"")}, None),
        ({"x": array(shape=[1] * 80 + [2])}, "array cannot be made"),
        ({"x": array(shape=None)}, "whole numbers"),
        ({"x": array(data="text")}, "as many bytes"),
        ({"x": {b"__npgeneric__": True, b"data": "1", b"dtype": "<f4"}}, "no number"),
        ({"x": {b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}}, "cannot be made"),
        ({"x": [0] * 5000}, "not msgpack"),
        ({"x": [[]] * 1200}, "more than 1000"),
        ({"x": msgpack.ExtType(4, b"code")}, "not msgpack"),
        ([1, 2], "must be a map"),
    ],
)
def test_a_message_that_is_not_plain_data_is_refused_in_a_sentence(message, words):
    data = msgpack.packb(message)
    if words is None:  # no elements: whatever NumPy says, no memory is taken
        try:
            wire.unpack(data)
        except wire.WireError:
            pass
        return
    with pytest.raises(wire.WireError, match=words):
        wire.unpack(data)


@pytest.mark.parametrize("data", ["text", b"", b"\xc1", b"\x81", b"\x91" * 5000, b"\x80\x80", b"\xdd\xff\xff\xff\xff"])
def test_bytes_that_are_no_message_are_refused_in_a_sentence(data):
    with pytest.raises(wire.WireError):
        wire.unpack(data)
