"""The fast decoder of JSON bodies, in C++, and the full one agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.payloads import read_items
from app.codecs.numbers import NumberReader, ReadFloats
from app.codecs.tensor import TensorCodec
from app.errors import TorchlaneError
from app.types import Item
from models.manifest import Manifest
from models.tensors import Dtype
from tests.native import read_floats
from tests.unit.models.manifests import make_manifest, spec

MAX_ITEMS = 3


class ThoroughCodec(TensorCodec):
    """Takes nothing on the fast way."""

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        return None


class FastCodec(TensorCodec):
    """Reads floats with this function."""

    def __init__(self, manifest: Manifest, read_floats: ReadFloats) -> None:
        super().__init__(manifest)
        (only,) = manifest.inputs
        self._numbers = NumberReader(only, read_floats) if NumberReader.can_read(only) else None

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        return self._numbers.items(key, body, max_items) if self._numbers else None


@dataclass(frozen=True)
class Ways:
    """The codecs of one input."""

    fast: FastCodec
    thorough: ThoroughCodec

    @classmethod
    @cache
    def of(cls, dtype: Dtype, shape: tuple[int, ...]) -> Ways:
        manifest = make_manifest([spec("x", dtype, (-1, *shape))])
        return cls(FastCodec(manifest, read_floats()), ThoroughCodec(manifest))

    def check(self, body: bytes, *, many: bool) -> bool:
        """Compare the outcomes of a body; returns whether they are items."""
        right = outcome(self.thorough, body, many=many)
        assert outcome(self.fast, body, many=many) == right
        return right[0] == "items"


def outcome(codec: TensorCodec, body: bytes, *, many: bool) -> tuple[object, ...]:
    try:
        items = read_items(codec, "application/json", body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError as error:
        return type(error), str(error), error.details
    arrays = [(name, array) for item in items for name, array in item.arrays.items()]
    assert all(array.flags.c_contiguous for _, array in arrays)
    signatures = [item.signature for item in items]
    return "items", signatures, [(n, a.dtype.str, a.shape, a.tobytes()) for n, a in arrays]


SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (1, 1, 2), (2, 1)]
DTYPES: list[Dtype] = ["float32", "float64"]

# The digits of a number are what parsers differ in, so many are drawn as text.
digits = st.text("0123456789", min_size=1, max_size=25)
finite = st.floats(allow_nan=False, allow_infinity=False)
spelt = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.one_of(st.just("0"), digits.map(lambda text: "1" + text), st.sampled_from("123456789")),
        st.one_of(st.just(""), digits.map(lambda text: "." + text)),
        st.just("") | st.from_regex("[eE][+-]?[0-9]{1,3}", fullmatch=True),
    ),
)
good = st.one_of(
    st.integers(-130, 260).map(str),
    finite.map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(["0", "-0", "-0.0", "1E5", "1e+5", "-0e0", "16777217", "5e-324", "1e-400"]),
    st.sampled_from(["9007199254740993", "9007199791611905", "3.4028235677973366e+38", "65519.99"]),
    spelt,
)
bad = st.sampled_from(
    [
        *("null", "true", '"1"', '"ab"', "{}", '{"x": 1}', "[]", "[1]", "[1, 2]", "", "[[]]"),
        *("NaN", "-Infinity", "01", "1.", ".5", "+1", "-", "1e", "1e999", "0x1", "'1'", "nul"),
    ]
)
space = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
tame = st.integers(-9, 9).map(str) | st.floats(-9, 9).map(repr)
whole = st.integers(0, 100).map(str)
OTHER_SHAPES: list[tuple[int, ...]] = [(0,), (2, 0), (3, 2), (6,), (2,), (1, 3), (2, 3, 1)]


def nested(leaves: list[str], shape: tuple[int, ...]) -> str:
    """The text of lists of this shape; takes its leaves off the list."""
    if not shape:
        return leaves.pop()
    return "[" + ",".join(nested(leaves, shape[1:]) for _ in range(shape[0])) + "]"


@st.composite
def items(draw: st.DrawFn, shape: tuple[int, ...], leaf: st.SearchStrategy[str], odd: bool) -> str:
    """One item, nested; if odd flat, by name, of another shape, or none at all."""
    kind = draw(st.sampled_from(["nested", "flat", "named", "other", "bad"])) if odd else "nested"
    if kind == "bad":
        return draw(bad)
    if kind == "other":
        shape = draw(st.sampled_from(SHAPES + OTHER_SHAPES))
    if kind == "flat":
        shape = (math.prod(shape),)
    text = nested([draw(leaf) for _ in range(9)], shape)
    return f'{{"x": {text}}}' if kind == "named" else text


@st.composite
def bodies(draw: st.DrawFn, shape: tuple[int, ...], *, many: bool) -> bytes:
    """The text of a body, with no flaw or one of each of some kinds."""
    flaws = draw(st.sets(st.sampled_from(["leaf", "item", "key", "member", "text"]), max_size=2))
    leaf = draw(st.sampled_from([good, good | bad] if "leaf" in flaws else [tame, whole]))
    each = items(shape, leaf, odd="item" in flaws)
    value = draw(each)
    if many:
        most = MAX_ITEMS + ("item" in flaws)
        value = "[" + ",".join([value, *draw(st.lists(each, max_size=most - 1))]) + "]"
    right = key = "inputs" if many else "input"
    if "key" in flaws:
        key = draw(st.sampled_from([right.replace("i", "\\u0069"), "input", "inputs", "in[put"]))
    members = [f'"{key}"{draw(space)}:{draw(space)}{value}']
    if "member" in flaws:
        extra = draw(st.sampled_from([f'"{right}":{value}', f'"{right}":1', '"more":[1]', ""]))
        members.insert(draw(st.integers(0, 1)), extra)
    text = draw(space) + "{" + draw(space) + ",".join(members) + draw(space) + "}" + draw(space)
    if "text" not in flaws:
        return text.encode()
    at = draw(st.integers(0, len(text)))
    inserted: str = draw(st.sampled_from([*'[]{},:"0-.eE \f\0\x01\u00a0\ufeff', "", ",[]", "[1],"]))
    text = text[:at] + inserted + text[at + draw(st.integers(0, 2)) :]
    start: str = draw(st.sampled_from(["", "", "\ufeff", "\udcff"]))  # the last: a lone byte
    return (start + text).encode(errors="surrogateescape")


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.booleans())
def test_all_parsers_agree_on_any_body(
    data: st.DataObject, dtype: Dtype, shape: tuple[int, ...], many: bool
) -> None:
    Ways.of(dtype, shape).check(data.draw(bodies(shape, many=many)), many=many)


@pytest.mark.parametrize(
    "text",
    [
        '{"input": [1, 2, 3], "input": [4, 5, 6]}',
        '{"input": {"x": [1, 2, 3], "x": [4, 5, 6]}}',
        '{"\\u0069nput": [1, 2, 3]}',
        '{"input": {"\\u0078": [1, 2, 3]}}',
        '{"input": [9007199254740993, 9007199791611905, 1]}',
        '{"input": [-0, 0.0, -0.0]}',
        '\ufeff{"input": [1, 2, 3]}',
        '{"input": [1, 2, [3]]}',
        '{"input": [[1, 2, 3]]}',
        '{"input": [true, 2, 3]}',
        '{"input": "[1, 2, 3]"}',
        '{"input": [1, 2, 3], "more": 1}',
        '{"input": [1, 2, 3]} 7',
        '{"input": [1, 2, 1e999]}',
        "[1, 2, 3]",
        '{"input": [1, 2, 1e39]}',
        '{"input": [1, 2, 3]}}',
        '{"inp\\ud800ut": [1, 2, 3]}',
        '{"input\\u0000": [1, 2, 3]}',
        '{"input": [1, 2, 3]}\x00',
        '{"input": ' + "[" * 1100 + "]" * 1100 + "}",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_parsers_agree_on_ambiguous_bodies(text: str, dtype: Dtype) -> None:
    single: list[tuple[int, ...]] = [(3,), (1,)]
    for shape in single:
        Ways.of(dtype, shape).check(text.encode(), many=False)
    many = text.replace('"input"', '"inputs"').encode()
    for shape in SHAPES:
        Ways.of(dtype, shape).check(many, many=True)
