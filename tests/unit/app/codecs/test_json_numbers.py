"""The reader of floats in C++: it reads what orjson reads, to the last bit, and nothing else.

What both share is in test_numbers.py and, next to the full decoder, in test_payloads_numbers.py.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codecs.numbers import ReadFloats
from models.tensors import Dtype
from tests.native import read_floats

MOST = 2**53 - 1


@pytest.fixture(scope="session")
def read() -> ReadFloats:
    return read_floats()


def numbers_of(
    read: ReadFloats, texts: Sequence[str], dtype: Dtype = "float64"
) -> list[float] | None:
    body = f'{{"input": [{", ".join(texts)}]}}'.encode()
    octets = read(body, "input", "x", (len(texts),), None, dtype == "float64")
    return None if octets is None else np.frombuffer(octets, dtype).tolist()


def bits(number: float) -> bytes:
    return struct.pack("d", number)


digits = st.text("0123456789", min_size=1, max_size=25)
spelt = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.just("0") | digits.map(lambda text: text.lstrip("0") or "0"),
        st.just("") | digits.map(lambda text: "." + text),
        st.just("") | st.from_regex(r"[eE][+-]?[0-9]{1,3}", fullmatch=True),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(spelt, min_size=1, max_size=6))
def test_any_spelling_rounds_like_python(read: ReadFloats, texts: list[str]) -> None:
    for text in texts:
        got = numbers_of(read, [text])
        right = float(text)
        if got is None:  # left to others: too large, or next to nothing
            assert abs(right) > MOST or abs(right) < 1e-300
        else:
            whole = "." not in text and "e" not in text.lower()
            assert bits(got[0]) == bits(0.0 if right == 0 and whole else right)
    together = numbers_of(read, texts)
    assert (together is None) == any(numbers_of(read, [text]) is None for text in texts)


@settings(max_examples=100, deadline=None)
@given(st.integers(2**52, 2**53 - 1), st.integers(-1070, -1), st.sampled_from([-1, 0, 1]))
def test_ties_and_their_neighbours(
    read: ReadFloats, mantissa: int, exponent: int, aside: int
) -> None:
    """Halfway between two doubles, exactly and with a digit more or less in the last place."""
    odd = 2 * mantissa + 1  # times 2**(exponent - 1)
    places = 1 - exponent
    text = str(odd * 5**places * 10 + aside)  # times 10**(-places - 1)
    got = numbers_of(read, [f"{text}e{-places - 1}"])
    right = float(f"{text}e{-places - 1}")
    assert right < 1e-300 if got is None else bits(got[0]) == bits(right)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("0", 0.0),
        ("-0", 0.0),  # an integer
        ("-0.0", -0.0),
        ("-0e0", -0.0),
        ("0e99999999999999999999", 0.0),
        ("0." + "0" * 400 + "1e401", 1.0),
        ("1" + "0" * 400 + "e-400", 1.0),
        ("5e-324", 5e-324),
        ("2.2250738585072011e-308", 2.2250738585072011e-308),
        ("9007199254740991", MOST),
        ("9007199254740991.0", MOST),
        ("1.00000000000000011102230246251565", 1.0),
        ("1.00000000000000011102230246251566", 1.0000000000000002),
        ("0.50000000000000000000000000000000", 0.5),
        ("18446744073709551615e-19", 1.8446744073709551615),
        ("18446744073709551616e-19", 1.8446744073709551616),
        *((text, None) for text in ("9007199254740992", "9007199254740991.5", "1e16", "1e999")),
        *((text, None) for text in ("1e-400", "-1e99999999999999999999", "99999999999999999999")),
        *((text, None) for text in ("01", "-", "+1", "1.", ".5", "1e", "1e+", "1.e1", "0x1", "1f")),
        *((text, None) for text in ("NaN", "Infinity", "-inf", "1 1", "1,", ",1", "", "\u0661")),
        *((text, None) for text in ("true", "null", '"1"', "[1]", "{}", "1\0", "\0", "1\f", "--1")),
    ],
)
def test_edges(read: ReadFloats, text: str, right: float | None) -> None:
    got = numbers_of(read, [text])
    assert got is None if right is None else got is not None and bits(got[0]) == bits(right)


BODIES = (
    (b' { "input" : [ [ 1.5 ,-2,3e1],\t[4, 5.25 ,0.1]\r\n] } ', "input", None),
    (b'{"input":{"x":[1,2,3,4,5,123456789012.5]}}', "input", None),
    (b'{"inputs":[[[1,2,3],[4,5,6]],[[7,8,9],[0,0,0.125]]]}', "inputs", 3),
    (b'{"inputs": [[1,2,3,4,5,6], [7,8,9,0,0,0.125]]}', "inputs", 3),
)


@pytest.mark.parametrize(("body", "key", "most"), BODIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
class TestChanged:
    """Bodies that are good at first, and then changed at every place."""

    def check(
        self, read: ReadFloats, body: bytes, key: str, most: int | None, dtype: Dtype
    ) -> bool:
        octets = read(body, key, "x", (2, 3), most, dtype == "float64")
        if octets is None:
            return False
        value = json.loads(body)[key]
        numbers = value["x"] if isinstance(value, dict) else value
        assert octets == np.array(numbers, dtype).tobytes(), body
        return True

    def test_one_byte_added_removed_or_changed(
        self, read: ReadFloats, body: bytes, key: str, most: int | None, dtype: Dtype
    ) -> None:
        for at in range(len(body) + 1):
            self.check(read, body[:at] + body[at + 1 :], key, most, dtype)
            for octet in b'[]{},:"-+.eE019 \n\t\0\\\xef':
                other = bytes([octet])
                self.check(read, body[:at] + other + body[at:], key, most, dtype)
                self.check(read, body[:at] + other + body[at + 1 :], key, most, dtype)


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": {"y": [1, 2]}}',
        b'{"input": {"x": [1, 2], "x": [1, 2]}}',
        b'{"input": [1, 2], "input": [1, 2]}',
        b'{"other": [1, 2]}',
        b'{"\\u0069nput": [1, 2]}',
        b'\xef\xbb\xbf{"input": [1, 2]}',
        b'{"input": [[[1, 2]]]}',
        b"[1, 2]",
        b"",
    ],
)
def test_other_bodies_are_left_to_the_slow_parser(read: ReadFloats, body: bytes) -> None:
    assert read(body, "input", "x", (2,), None, False) is None
    assert read(body.replace(b"input", b"inputs"), "inputs", "x", (2,), 1, False) is None


def test_items_beyond_the_maximum(read: ReadFloats) -> None:
    body = json.dumps({"inputs": [[1, 2]] * 3}).encode()
    assert read(body, "inputs", "x", (2,), 3, False) is not None
    assert read(body, "inputs", "x", (2,), 2, False) is None


def test_missing_numbers_allocate_no_memory(read: ReadFloats) -> None:
    tracemalloc.start()
    try:
        huge = (2**31 - 1,) * 5
        assert read(b'{"input": [1, 2]}', "input", "x", huge, None, True) is None
        assert read(b'{"input": [1, 2]}', "input", "x", (10**9,), None, True) is None
        assert read(b'{"input": [' + b"," * 99_999, "input", "x", (9,), None, True) is None
        assert read(b'{"inputs": [' + b"[" * 99_999, "inputs", "x", (9,), 9, True) is None
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_arguments_of_the_wrong_kind(read: ReadFloats) -> None:
    wrongs: tuple[Any, ...] = (
        (bytearray(b"{}"), "input", "x", (1,), None, False),
        (b"{}", b"input", "x", (1,), None, False),
        (b"{}", "input", "x", [1], None, False),
        (b"{}", "input", "x", (1,), "many", False),
        (b"{}", "input", "x", (1,), None),
    )
    for wrong in wrongs:
        with pytest.raises((TypeError, SystemError)):
            read(*wrong)
    for shape in ((0,), (1,) * 65):
        with pytest.raises(ValueError, match="ax"):
            read(b"{}", "input", "x", shape, None, False)
