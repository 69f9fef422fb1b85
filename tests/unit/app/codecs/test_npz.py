"""Arrays of .npz files: as numpy writes them, as we do, and everything that can be wrong."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest

from app.codecs.answers import AnswerEncoder
from app.codecs.base import NPZ, Budget, TooLongForLoop
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput, PayloadTooLarge
from app.types import Array, Item
from tests.unit.models.manifests import make_manifest, spec

A = np.array([[1, 2], [3, 4], [5, 6]], np.float32)  # three items
B = np.array([7, 8, 9])
BOTH = TensorCodec(make_manifest([spec("a", "float32", (-1, 2)), spec("b", "int64", (-1,))]))


def npz(*, packed: bool = False, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def archive(*entries: tuple[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as made:
        for name, data in entries:
            made.writestr(name, data)
    return buffer.getvalue()


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def items(body: bytes, most: int | None = 9, budget: Budget | None = None) -> list[Item]:
    return BOTH.decode_raw(NPZ, body, max_items=most, budget=budget)


@pytest.mark.parametrize("packed", [False, True])
def test_as_numpy_writes_them(packed: bool) -> None:
    found = items(npz(packed=packed, b=B, a=A.astype(np.float64)))
    assert [each.arrays["a"].tolist() for each in found] == A.tolist()
    assert [int(each.arrays["b"]) for each in found] == B.tolist()
    assert found[0].arrays["a"].dtype == np.float32
    (one,) = items(npz(packed=packed, a=A[0], b=B[0]), most=None)
    assert (one.arrays["a"].tolist(), int(one.arrays["b"])) == ([1, 2], 7)


def flagged(body: bytes, flag: int) -> bytes:
    """An archive whose first entry has a flag in the directory."""
    at = body.index(b"PK\1\2") + 8
    return body[:at] + struct.pack("<H", flag) + body[at + 2 :]


OBJECTS = np.array([{"a": 1}], dtype=object)
NAMES = r"exactly 'a', 'b', as numpy.savez\(file, a=..., b=...\) writes"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a zip archive"),
        (b"PK\3\4", "not a zip archive"),
        (npz(a=A, b=B)[:-30], "not a zip archive"),
        (b"x" + npz(a=A, b=B), "not a zip archive"),
        (npz(a=A), f"arrays 'a'; this model takes {NAMES}"),
        (archive(), "not a zip archive"),
        (npz(a=A, b=B, c=A), f"'a', 'b', 'c'; this model takes {NAMES}"),
        (archive(("a", npy(A)), ("b", npy(B))), NAMES),
        (archive(("../a.npy", npy(A)), ("b.npy", npy(B))), "leads out of its folder"),
        (archive(*[(f"{at}.npy", b"") for at in range(12)]), "'5', ...; this model"),
        (npz(a=A, b=B[:2]), r"differ in their number of items: {'a': 3, 'b': 2}"),
        (npz(a=A.T, b=B), "a.npy: 'a': expected float32"),
        (npz(a=A, b=B + 0.5), "b.npy: 'b': expected whole numbers"),
        (npz(a=A[:0], b=B[:0]), "a.npy: 'a': expected"),
        (npz(a=A, b=OBJECTS), "b.npy: 'b': .* got an array of object"),
        (npz(a=A, b=np.array(["x"])), "b.npy: 'b': .* got an array of <U1"),
        (archive(("a.npy", b"no"), ("b.npy", npy(B))), r"a.npy: this is not an \.npy file"),
        (flagged(npz(a=A, b=B), 1), "which is encrypted"),
        (npz(a=A, b=B).replace(A.tobytes(), A[::-1].tobytes()), "damaged: Bad CRC-32"),
        (
            archive(("a.npy", npy(A)), ("b.npy", npy(B)), packing=zipfile.ZIP_LZMA),
            "packed by method 14; only stored and deflated",
        ),
        (npz(a=np.full((3, 2), np.nan), b=B), r"inputs\[0\]: 'a'"),
    ],
)
def test_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        items(body)


def test_too_many_entries() -> None:
    with pytest.raises(InvalidInput, match="it has too many entries"):
        items(archive(*[(f"{at}.npy", b"") for at in range(9000)]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice() -> None:
    with pytest.raises(InvalidInput, match=r"contains 'a\.npy' twice"):
        items(archive(("a.npy", npy(A)), ("b.npy", npy(B)), ("a.npy", npy(A))))


def test_too_many_items() -> None:
    with pytest.raises(PayloadTooLarge, match="3 items in one request, the limit is 2"):
        items(npz(a=A, b=B), most=2)


def test_bombs_are_not_unpacked() -> None:
    bomb = npz(packed=True, a=np.zeros((4 << 20, 2), np.float32), b=B)
    tracemalloc.start()
    with pytest.raises(PayloadTooLarge, match=r"unpacks to 33554712 bytes, .* numpy\.savez"):
        items(bomb)
    # Sizes in the directory that are too small: no more than these is unpacked.
    at = bomb.index(b"PK\1\2") + 24
    with pytest.raises(InvalidInput, match="damaged"):
        items(bomb[:at] + struct.pack("<I", 128) + bomb[at + 4 :])
    assert tracemalloc.get_traced_memory()[1] < 2 * len(bomb) + (4 << 20)
    tracemalloc.stop()


def test_a_content_encoding_and_the_file_share_one_limit() -> None:
    """Of 2 MiB of zeros in a file of 2 kB, which was compressed once more."""
    file = npz(packed=True, a=np.zeros((2 << 17, 2), np.float32), b=np.zeros(2 << 17, int))
    sent = len(file)
    assert 32 * sent < 4 << 20
    limits = [(40 << 10, "40960 received bytes is 1310720"), (0, f"{sent} received bytes is 1")]
    assert len(items(npz(a=A, b=B), budget=Budget(received=10))) == 3
    for received, told in limits:
        with pytest.raises(PayloadTooLarge, match=told):
            items(file, 2 << 17, Budget(received=received))


class TestAnswers:
    TWO = AnswerEncoder(
        make_manifest(outputs=[spec("y", shape=(-1, 2)), spec("n", "int64", (-1,))])
    )

    @staticmethod
    def read(made: AnswerEncoder, predictions: Any, *, many: bool) -> dict[str, Any]:
        body = b"".join(made.encode_raw(NPZ, predictions, many=many))
        with np.load(io.BytesIO(body), allow_pickle=False) as found:
            return {name: found[name].tolist() for name in found.files}

    def test_several_outputs(self) -> None:
        predictions = [{"y": row, "n": count} for row, count in zip(A, B, strict=True)]
        assert self.read(self.TWO, predictions[:1], many=False) == {"y": [1, 2], "n": 7}
        found = self.read(self.TWO, predictions, many=True)
        assert found == {"y": A.tolist(), "n": B.tolist()}

    def test_every_part_is_small_and_every_answer_the_same(self) -> None:
        wide = AnswerEncoder(make_manifest(outputs=[spec("y", shape=(-1, 1 << 19))]))
        numbers = np.arange(1 << 19, dtype=np.float32)
        parts = list(wide.encode_raw(NPZ, [{"y": numbers}], many=False))
        assert max(map(len, parts)) < 300 << 10
        assert parts == list(wide.encode_raw(NPZ, [{"y": numbers}], many=False))
        assert self.read(wide, [{"y": numbers}], many=False)["y"] == numbers.tolist()


def test_large_files_are_read_in_a_thread() -> None:
    small = npz(a=A, b=B)
    assert len(items(small, budget=Budget(on_loop=True))) == 3
    many = np.zeros((8000, 2), np.float32)
    for packed in (False, True):
        with pytest.raises(TooLongForLoop):
            items(npz(packed=packed, a=many, b=np.zeros(8000, int)), 9000, Budget(on_loop=True))
