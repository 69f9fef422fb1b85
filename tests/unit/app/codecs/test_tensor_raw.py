"""Tensors from raw bytes: octet-stream and .npy, and everything that can be wrong with them."""

from __future__ import annotations

import contextlib
import io
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.codecs.base import NPY, OCTET_STREAM
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput, PayloadTooLarge
from app.types import Array
from models.tensors import Dtype
from tests.unit.models.manifests import make_manifest, spec

PAIR = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def codec(dtype: Dtype = "float32", shape: tuple[int, ...] = (2, 3)) -> TensorCodec:
    return TensorCodec(make_manifest([spec("x", dtype, (-1, *shape))]))


def rows(
    media_type: str, body: bytes, made: TensorCodec | None = None, *, many: bool = False
) -> list[Array]:
    items = (made or codec()).decode_raw(media_type, body, max_items=100 if many else None)
    return [item.arrays["x"] for item in items]


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


def npy_of(header: str, data: bytes = b"") -> bytes:
    """An .npy file of version 1.0 with any text as its header."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def header(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


class TestOctetStream:
    @pytest.mark.parametrize(
        ("size", "many", "wanted"),
        [
            (0, False, "expected 24 bytes"),
            (23, False, "expected 24 bytes"),
            (25, False, "expected 24 bytes"),
            (48, False, "expected 24 bytes"),
            (0, True, "expected a whole multiple of 24 bytes"),
            (47, True, "expected a whole multiple of 24 bytes"),
        ],
    )
    def test_wrong_size_is_reported(self, size: int, many: bool, wanted: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            rows(OCTET_STREAM, bytes(size), many=many)
        assert f"{wanted} (little-endian float32 of shape [2, 3]), got {size}" in str(caught.value)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, bad: float) -> None:
        with pytest.raises(InvalidInput, match="NaN, infinity"):
            rows(OCTET_STREAM, np.where(PAIR == 4, np.float32(bad), PAIR).tobytes())

    def test_a_bool_is_a_byte_of_zero_or_one(self) -> None:
        with pytest.raises(InvalidInput, match="0 or 1"):
            rows(OCTET_STREAM, b"\0\1\2", codec("bool", (3,)))


class TestNpy:
    @pytest.mark.parametrize("version", [(1, 0), (2, 0)])
    @pytest.mark.parametrize(
        "array",
        [
            PAIR,
            np.asfortranarray(PAIR),
            PAIR.astype(">f4"),
            PAIR.astype("f8"),
            PAIR.astype("i4"),
            PAIR.astype(">u2"),
        ],
        ids=["plain", "fortran", "big-endian", "double", "int", "big-endian int"],
    )
    def test_one_item(self, array: Array, version: tuple[int, int]) -> None:
        (got,) = rows(NPY, npy(array, version))
        assert (got.dtype, got.shape) == (np.dtype(np.float32), (2, 3))
        assert got.dtype.isnative
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, PAIR)

    @pytest.mark.parametrize(
        ("array", "many", "message"),
        [
            (PAIR.T, False, "expected float32 of shape [2, 3], got shape [3, 2]"),
            (PAIR.ravel(), False, "got shape [6]"),
            (PAIR, True, "with a leading axis for the items, got shape [2, 3]"),
            (PAIR[None], False, "got shape [1, 2, 3]"),
            (PAIR[None][:0], True, "got shape [0, 2, 3]"),
            (np.float32(1), True, "got shape []"),
            (PAIR.astype("c8"), False, "got an array of complex64"),
            (PAIR.astype("S4"), False, "got an array of |S"),
            (PAIR.astype("M8[s]"), False, "got an array of datetime64"),
            (PAIR.astype([("a", "f4")]), False, "got an array of [('a'"),
            (PAIR > 1, False, "not all numbers"),
            (np.where(PAIR == 1, np.nan, PAIR), False, "NaN"),
            (PAIR.astype("f8") * 1e38, False, "too large for float32"),
        ],
    )
    def test_refused(self, array: Any, many: bool, message: str) -> None:
        with pytest.raises(InvalidInput, match=re.escape(message)):
            rows(NPY, npy(np.asarray(array)), many=many)

    def test_objects_are_never_unpickled(self) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return (pytest.fail, ("it was unpickled",))

        buffer = io.BytesIO()
        np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
        with pytest.raises(InvalidInput, match="got an array of object"):
            rows(NPY, buffer.getvalue())

    def test_archives_and_later_versions_are_not_read(self) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, PAIR)
        with pytest.raises(InvalidInput, match=r"not an \.npy file"):
            rows(NPY, buffer.getvalue())
        with pytest.raises(InvalidInput, match="version"):
            rows(NPY, npy(PAIR, (3, 0)))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\x93NUMPY",
            npy(PAIR)[:40],
            npy_of(""),
            npy_of("nothing"),
            npy_of("{}"),
            npy_of("("),
            npy_of("'"),
            npy_of('"""'),
            npy_of("\0"),
            npy_of("-" * 3900 + "1"),
            npy_of("(" * 3000),
            npy_of("[" * 90 + "]" * 90),
            npy_of(header("(1,\n")),
            npy_of(header("2")),
            npy_of(header("(2.5,)")),
            npy_of(header("(2, 3)", "'<no'")),
            npy_of(header("(2, 3)", "None")),
            npy_of(header("(2, 3)") + " " * 5000),
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(10),
        ],
    )
    def test_an_invalid_file(self, body: bytes) -> None:
        with pytest.raises(InvalidInput, match=r"not an \.npy file"):
            rows(NPY, body)

    @pytest.mark.parametrize("many", [False, True])
    @pytest.mark.parametrize(
        ("shape", "size"),
        [
            ("(2, 3)", 23),
            ("(2, 3)", 25),
            ("(2, 3)", 0),
            ("(1000000, 1000000, 1000)", 24),
            ("(-2, -3)", 24),
            ("(True, 6)", 24),
            ("(0, " + "9" * 30 + ")", 0),
            ("(" + "1, " * 70 + ")", 4),
        ],
    )
    def test_a_header_that_contradicts_the_data(self, shape: str, size: int, many: bool) -> None:
        with pytest.raises(InvalidInput, match=r"the \.npy header says shape|got shape"):
            rows(NPY, npy_of(header(shape), bytes(size)), many=many)

    @pytest.mark.parametrize("made", [codec(), codec(shape=(-1, -1))], ids=["fixed", "free"])
    @pytest.mark.parametrize("shape", ["(4000000000,)", "(1000000, 1000000)", "(500000000, 0, 0)"])
    def test_header_claims_allocate_no_memory(self, made: TensorCodec, shape: str) -> None:
        body = npy_of(header(shape))
        tracemalloc.start()
        try:
            with pytest.raises(InvalidInput):
                rows(NPY, body, made, many=True)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()

    @given(st.binary(max_size=40), st.integers(0, 150), st.booleans())
    def test_damage_raises_only_invalid_input(self, junk: bytes, at: int, many: bool) -> None:
        body = npy(PAIR)
        with contextlib.suppress(InvalidInput):
            rows(NPY, body[:at] + junk + body[at + len(junk) :], many=many)


@pytest.mark.parametrize("media_type", [OCTET_STREAM, NPY])
def test_too_many_items_are_refused_before_decoding(media_type: str) -> None:
    many = np.zeros((200_000, 1), np.float32)
    body = npy(many) if media_type == NPY else many.tobytes()
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge, match="200000 items in one request, the limit is 100"):
            rows(media_type, body, codec(shape=(1,)), many=True)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # a copy of the bytes at most
    finally:
        tracemalloc.stop()
