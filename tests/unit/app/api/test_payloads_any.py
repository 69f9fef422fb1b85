"""Any JSON for every kind of model: valid items or a rejection, the same on both paths."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import json_bodies
from tests.fuzz.codecs import CODECS

KEYS = st.sampled_from(["input", "inputs", "x", "a", "b", "picture", "y"])
leaves = st.one_of(
    st.integers(),
    st.integers(-2, 2),
    st.floats(),  # NaN and infinity too, as Python writes them
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.binary(max_size=20).map(lambda raw: "data:," + raw.hex()),
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=600, deadline=None)
@given(documents, st.integers(0, len(CODECS) - 1), st.booleans(), st.booleans())
def test_any_document(document: object, codec: int, many: bool, inside: bool) -> None:
    if inside:
        document = {"inputs": [document, document]} if many else {"input": document}
    json_bodies.case(bytes((codec, many)) + json.dumps(document).encode())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(CODECS) - 1), st.booleans())
def test_any_bytes(body: bytes, codec: int, many: bool) -> None:
    json_bodies.case(bytes((codec, many)) + body)
