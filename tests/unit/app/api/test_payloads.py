"""Bodies to items."""

from __future__ import annotations

import contextlib
import functools
import io

import numpy as np
import orjson
import pytest

from app.api import payloads
from app.api.payloads import (
    MAX_UNCOUNTED_BYTES,
    check_length,
    check_marks,
    media_type_of,
    read_items,
)
from app.codecs.base import (
    JPEG,
    JSON,
    MAX_LOOP_BYTES,
    NPY,
    OCTET_STREAM,
    PNG,
    TEXT,
    Budget,
    Codec,
    TooLongForLoop,
)
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput, InvalidItem, PayloadTooLarge, UnsupportedMediaType
from models.tensors import Dimension, TensorSpec
from tests.forms import FORM, form, part
from tests.texts import tiny_text_codec
from tests.unit.models.manifests import make_manifest, spec

CODEC = TensorCodec(make_manifest([spec("x", shape=(-1, 2))]))


def read(
    body: object, content_type: str = JSON, *, many: bool = False, max_items: int = 3
) -> list[list[float]]:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    items = read_items(CODEC, content_type, raw, many=many, max_items=max_items)
    return [item.arrays["x"].tolist() for item in items]


def test_a_body_may_be_as_long_as_the_limit() -> None:
    check_length(4, limit=4)
    with pytest.raises(PayloadTooLarge, match="has at least 5 bytes, the limit is 4"):
        check_length(5, limit=4)


class TestReadItems:
    def test_many_in_order(self) -> None:
        assert read({"inputs": [[1, 2], [3, 4], [1, 2]]}, many=True) == [[1, 2], [3, 4], [1, 2]]

    @pytest.mark.parametrize(
        ("content_type", "usual"),
        [
            ("image/jpg", JPEG),
            ("IMAGE/PJPEG; name=x", JPEG),
            (" image/x-png", PNG),
            ("image/apng", PNG),
            ("image/gif", "image/gif"),
            ("Text/Plain; charset=utf-8", TEXT),
        ],
    )
    def test_other_names_of_media_types_mean_the_same_everywhere(
        self, content_type: str, usual: str
    ) -> None:
        assert media_type_of(CODEC, content_type, b"") == usual
        body = form(part(b"x", Content_Type=content_type))
        with pytest.raises(UnsupportedMediaType, match=f"not '{usual}'"):
            read(body, FORM)

    @pytest.mark.parametrize("content_type", ["text/plain", "application/jsonp", "image/png"])
    def test_other_content_types(self, content_type: str) -> None:
        with pytest.raises(UnsupportedMediaType, match="this model accepts application/json"):
            read({"input": [1, 2]}, content_type)

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"\xff", b"[1, 2", b'{"input": NaN}', b"[" * 3000, b'"\xed\xa0\x80"']
    )
    def test_no_json(self, body: bytes) -> None:
        with pytest.raises(InvalidInput, match=r'the body is not JSON: .*send \{"input": X\}'):
            read(body)

    @pytest.mark.parametrize("content_type", ["", JSON, "application/x-www-form-urlencoded"])
    def test_a_byte_order_mark_before_json_is_ignored(self, content_type: str) -> None:
        """As RFC 8259 allows, in section 8.1."""
        body = '\ufeff {"input": [1, 2]}'.encode()
        assert read(body, content_type) == [[1, 2]]
        with pytest.raises(InvalidInput, match="mark of UTF-16; convert it to UTF-8; send"):
            read('{"input": [1, 2]}'.encode("utf-16"))

    @pytest.mark.parametrize(
        ("body", "many", "message"),
        [
            ([1, 2], False, 'the body must be {"input": X} and nothing else'),
            (None, True, 'the body must be {"inputs": [X, ...]} and nothing else'),
            ({"inputs": [[1, 2]]}, False, "; /batch-predict accepts the other form"),
            ({"input": [1, 2]}, True, "; /predict accepts the other form"),
            ({"input": [1, 2], "model": "x"}, False, "and nothing else; it also has 'model'"),
            ({"x": [1, 2]}, False, "and nothing else"),
            ({}, False, "and nothing else"),
            ({"inputs": []}, True, "'inputs' must be a list of at least one item"),
            ({"inputs": {"x": [1, 2]}}, True, "'inputs' must be a list"),
            ({"inputs": None}, True, "'inputs' must be a list"),
        ],
    )
    def test_wrong_body_error_shows_the_valid_form(
        self, body: object, many: bool, message: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            read(body, many=many)
        assert message in str(caught.value)

    def test_several_inputs_belong_into_one_object(self) -> None:
        codec = TensorCodec(make_manifest([spec("x", shape=(-1,)), spec("y", shape=(-1,))]))

        def error(body: bytes, content_type: str) -> str:
            with pytest.raises(InvalidInput) as caught:
                read_items(codec, content_type, body, many=False, max_items=3)
            return str(caught.value)

        fields = form(part(b"1"), part(b"2"))
        assert error(orjson.dumps({"x": 1, "y": 2}), JSON).endswith("X is an object with 'x', 'y'")
        assert error(fields, FORM).endswith("X is an object with 'x', 'y'")

    def test_a_wrong_item_is_named_by_its_index(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            read({"inputs": [[1, 2], [3], [4, 5]]}, many=True)
        problem = "'x': expected float32 of shape [2], got shape [1]"
        assert str(caught.value) == f"inputs[1]: {problem}"
        assert caught.value.details == ({"index": 1, "problem": problem},)

    def test_too_many_items(self) -> None:
        values = [[1, 2]] * 4
        npy = io.BytesIO()
        np.save(npy, np.array(values, np.float32))
        for body, media_type in (
            ({"inputs": values}, JSON),
            (np.array(values, "<f4").tobytes(), OCTET_STREAM),
            (npy.getvalue(), NPY),
        ):
            with pytest.raises(PayloadTooLarge, match="4 items in one request, the limit is 3"):
                read(body, media_type, many=True)
            assert len(read(body, media_type, many=True, max_items=4)) == 4

    def test_items_are_counted_before_decoding(self) -> None:
        with pytest.raises(PayloadTooLarge):
            read({"inputs": ["wrong"] * 4}, many=True)


class TestMarks:
    """Large bodies are counted before they are parsed; no valid one is rejected for it."""

    INPUTS = (
        (spec("x", shape=(-1, 40, 3, 50)),),
        (spec("x", shape=(-1, -1, 9)),),
        (spec("x", shape=(-1, 12_000)),),
        (
            spec("x", shape=(-1, 9000, 1)),
            spec("second", shape=(-1, -1, -1)),
            spec("z", shape=(-1,)),
        ),
    )

    PICTURES = (
        (spec("x", shape=(-1, 3, 224, 224)),),
        (spec("x", shape=(-1, 3, 128, 128)), spec("y", shape=(-1, 128, 128))),
    )

    @staticmethod
    def largest(specs: tuple[TensorSpec, ...]) -> object:
        """The item with the most numbers and lists that a model takes."""

        def nested(sizes: list[int]) -> object:
            return [nested(sizes[1:])] * sizes[0] if sizes else 0

        items = {each.name: nested([axis.most for axis in each.axes]) for each in specs}
        return items if len(items) > 1 else items["x"]

    @pytest.mark.parametrize("specs", INPUTS)
    @pytest.mark.parametrize("many", [False, True])
    def test_largest_valid_body_is_read(self, specs: tuple[TensorSpec, ...], many: bool) -> None:
        codec = TensorCodec(make_manifest(small_free(specs)))
        item = self.largest(small_free(specs))
        wrapped = {"x": item} if len(specs) == 1 else item
        for each in (item, wrapped):
            body = orjson.dumps({"inputs": [each] * 3} if many else {"input": each})
            counted = body.ljust(MAX_UNCOUNTED_BYTES + 1)
            items = read_items(codec, JSON, counted, many=many, max_items=3)
            assert len(items) == (3 if many else 1)

    @pytest.mark.parametrize("specs", INPUTS)
    def test_body_far_above_the_largest_is_rejected(self, specs: tuple[TensorSpec, ...]) -> None:
        codec = TensorCodec(make_manifest(small_free(specs)))
        body = orjson.dumps({"inputs": [self.largest(small_free(specs))] * 30})
        with pytest.raises(PayloadTooLarge, match="the largest valid body for this model"):
            read_items(codec, JSON, body.ljust(MAX_UNCOUNTED_BYTES + 1), many=True, max_items=3)

    @pytest.mark.parametrize("specs", PICTURES)
    @pytest.mark.parametrize("piece", [b"[]", b"{}", b"[[[]]]", b'{"x":[]}'])
    @pytest.mark.parametrize("many", [False, True])
    def test_lists_in_place_of_numbers_are_not_parsed(
        self, specs: tuple[TensorSpec, ...], piece: bytes, many: bool
    ) -> None:
        codec = TensorCodec(make_manifest(specs))
        key, items = (b"inputs", 8) if many else (b"input", 1)
        most = codec.most_marks * items // (1 + piece.count(b"[") + piece.count(b"{"))
        body = b'{"%b":[%b]}' % (key, b",".join([piece] * most))
        with pytest.raises(
            PayloadTooLarge, match="lists and objects; the largest valid body for this model"
        ):
            read_items(codec, JSON, body, many=many, max_items=items)

    def test_too_many_numbers_in_few_lists(self) -> None:
        codec = TensorCodec(make_manifest([spec("x", shape=(-1, 12_000))]))
        body = orjson.dumps({"input": [0] * 40_000})
        with pytest.raises(PayloadTooLarge, match="commas and opening brackets"):
            read_items(codec, JSON, body, many=False, max_items=3)


def small_free(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """With free dimensions of a size that a test can write."""
    most = Dimension(most=60)
    return tuple(
        each.model_copy(update={"dimensions": (most,) * each.shape[1:].count(-1)}) for each in specs
    )


class TestManyItems:
    """A small body of many items leaves the event loop after those that take about 1 ms there."""

    INDICES = TensorCodec(make_manifest([spec("ids", "int64", (-1, 2))]))
    SEVERAL = TensorCodec(make_manifest([spec("a", "int64"), spec("b", "int64"), spec("c")]))

    @pytest.mark.parametrize(
        ("codec", "item", "most"),
        [(INDICES, [1, 2], 110), (INDICES, [1], 110), (SEVERAL, {"a": [1]}, 36)],
    )
    def test_numbers(self, codec: TensorCodec, item: object, most: int) -> None:
        for count, stays in ((most // 3, True), (most, False)):
            body, invalid = orjson.dumps({"inputs": [item] * count}), dict[int, InvalidItem]()
            with contextlib.nullcontext() if stays else pytest.raises(TooLongForLoop):
                read_items(
                    *(codec, JSON, body),
                    many=True,
                    max_items=count,
                    budget=lambda: Budget(on_loop=True),
                    invalid=invalid if item != [1, 2] else None,
                )

    @pytest.mark.parametrize("item", [7, [[7]], {"x": "cat"}])
    def test_errors_of_texts(self, item: object) -> None:
        body = orjson.dumps({"inputs": [item] * 1000})
        self.check_errors(tiny_text_codec(), JSON, body, 1000)

    def test_errors_of_files(self) -> None:
        body = form(*(part(b"x", Content_Type="image/png") for _ in range(150)))
        self.check_errors(CODEC, FORM, body, 150)

    def check_errors(self, codec: Codec, content_type: str, body: bytes, count: int) -> None:
        """Only some are found on the event loop, and all in a thread."""
        assert len(body) <= MAX_LOOP_BYTES
        for on_loop in (True, False):
            invalid = dict[int, InvalidItem]()
            with pytest.raises(TooLongForLoop) if on_loop else contextlib.nullcontext():
                read_items(
                    *(codec, content_type, body),
                    many=True,
                    max_items=count,
                    budget=functools.partial(Budget, on_loop=on_loop),
                    invalid=invalid,
                )
            assert len(invalid) <= 110 if on_loop else len(invalid) == count


class TestMarksInStrings:
    """Only those outside of strings say how much a body has to build."""

    CODEC = tiny_text_codec()
    LONG = MAX_UNCOUNTED_BYTES + 1

    @pytest.mark.parametrize("text", ["[{,", '\\"[', "\\\\", "\\", '"', ',\\\\"'])
    def test_are_not_counted(self, text: str) -> None:
        body = orjson.dumps({"input": text * (self.LONG // len(text) + 1)})
        (item,) = read_items(self.CODEC, JSON, body, many=False, max_items=3)
        assert item.length > 2

    @pytest.mark.parametrize("begin", ["", '"', '\\"', "\\\\\\\\"])
    def test_do_not_hide_marks_outside(self, begin: str) -> None:
        inside = orjson.dumps([begin, "[" * self.LONG])
        body = b'{"input": [%s, %s]}' % (inside, b"[]," * 1000 + b"[]")
        with pytest.raises(PayloadTooLarge, match="the body has 1004 lists and objects"):
            read_items(self.CODEC, JSON, body, many=False, max_items=3)

    def test_are_counted_off_the_loop(self) -> None:
        body = orjson.dumps({"input": "[" * self.LONG})
        with pytest.raises(TooLongForLoop):
            check_marks(body, self.CODEC, 1, Budget(on_loop=True))
        check_marks(body, self.CODEC, 1, Budget())

    def test_are_counted_across_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(payloads, "SCAN_BYTES", 7)
        self.test_are_not_counted('\\"[,')
        self.test_are_not_counted("\\\\[")
        self.test_do_not_hide_marks_outside('\\"')
