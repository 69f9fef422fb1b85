"""Texts, pairs and token ids become the inputs of a model; what was cut is noted."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer, models

from app.api.payloads import read_items
from app.codecs.base import MAX_LABELLED_TOKENS, Budget, Codec, TooLongForLoop
from app.codecs.choose import codec_for
from app.codecs.spans import SpanFinder
from app.codecs.text import MAX_TEXT_CHARACTERS
from app.errors import (
    Abandoned,
    ArtifactInvalid,
    CallerError,
    InvalidInput,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from app.types import Item, Note
from tests.texts import IDS, MAX_TOKENS, text_codec, text_manifest, tiny_text_codec, tiny_tokenizer
from tests.unit.models.manifests import spec

JSON = "application/json"
CODEC = tiny_text_codec()
PAIRS = tiny_text_codec(text_codec(task="rerank", pairs=True))
NAMES = ("input_ids", "attention_mask", "token_type_ids")


def ids(*words: str) -> list[int]:
    return [IDS[each] for each in words]


def arrays(item: Item) -> tuple[list[int], ...]:
    assert tuple(item.arrays) == NAMES
    assert all(array.dtype == np.int64 for array in item.arrays.values())
    return tuple(array.tolist() for array in item.arrays.values())


def refused(codec: Codec, value: object) -> str:
    with pytest.raises(InvalidInput) as error:
        codec.decode(value)
    return str(error.value)


def test_text_becomes_the_models_inputs() -> None:
    item = CODEC.decode("A cats")
    assert arrays(item) == (ids("[CLS]", "a", "cat", "##s", "[SEP]"), [1] * 5, [0] * 5)
    assert (item.length, item.note) == (5, Note(5))
    other = CODEC.decode("dog")
    assert item.signature == other.signature  # they share batches
    assert item.signature[0] == ("input_ids", "<i8", (-1,))


def test_long_text_is_truncated_with_a_note() -> None:
    item = CODEC.decode("cat " * 20)
    assert arrays(item)[0] == ids("[CLS]", *["cat"] * (MAX_TOKENS - 2), "[SEP]")
    assert item.note == Note(MAX_TOKENS, cut=14)
    answer = CODEC.encode({"embedding": np.zeros(2, np.float32)}, None, item.note)
    assert answer["details"] == {"tokens": MAX_TOKENS, "cut": 14}
    assert "details" not in CODEC.encode({"embedding": np.zeros(2)}, None, Note(3))


@pytest.mark.parametrize("value", [["cat", "dogs"], {"text": "cat", "text_pair": "dogs"}])
def test_a_pair_of_texts(value: object) -> None:
    wanted = ids("[CLS]", "cat", "[SEP]", "dog", "##s", "[SEP]")
    assert arrays(PAIRS.decode(value)) == (wanted, [1] * 6, [0, 0, 0, 1, 1, 1])


def test_token_ids_are_accepted() -> None:
    item = CODEC.decode(ids("cat", "dog"))
    assert arrays(item) == (ids("cat", "dog"), [1, 1], [0, 0])
    assert (item.length, item.note) == (2, Note(2))


def test_inputs_by_name_are_accepted() -> None:
    by_name = dict(zip(NAMES, (ids("cat", "dog"), [1, 1], [0, 1]), strict=True))
    item = PAIRS.decode(by_name)
    assert arrays(item) == tuple(by_name.values())
    assert (item.length, item.note) == (2, Note(2))
    assert item.signature == PAIRS.decode(["cat", "dog"]).signature


@pytest.mark.parametrize(
    ("codec", "value", "problem"),
    [
        (CODEC, None, "expected a text, a list of token ids, or an object with 'input_ids'"),
        (CODEC, ["a", "b"], "got two texts"),
        (CODEC, ["a", 1], "expected a text"),
        (CODEC, {"text": "a", "text_pair": "b"}, "got two texts"),
        (CODEC, {"text": "a", "texts": "b"}, "other names in addition to 'text'"),
        (CODEC, {"words": "a"}, "expected exactly 'input_ids'"),
        (CODEC, [], "expected int64 of shape [seq 1..8], got shape [0]"),
        (CODEC, [[1, 2]], "got shape [1, 2]"),
        (CODEC, [1, 12], "expected whole numbers in 0..11, got 12 at [1]"),
        (CODEC, [1.5], "expected whole numbers"),
        (CODEC, [True], "not all numbers"),
        (CODEC, dict(zip(NAMES, ([12], [1], [0]), strict=True)), "0..11, got 12"),
        (
            CODEC,
            dict(zip(NAMES, ([4], [2], [0]), strict=True)),
            "mask': expected whole numbers in 0..1",
        ),
        (
            CODEC,
            dict(zip(NAMES, ([4], [1], [1]), strict=True)),
            "type_ids': expected whole numbers in 0..0",
        ),
        (
            PAIRS,
            dict(zip(NAMES, ([4], [1], [2]), strict=True)),
            "type_ids': expected whole numbers in 0..1",
        ),
        (CODEC, dict(zip(NAMES, ([4], [0], [0]), strict=True)), "1 in at least one place"),
        (CODEC, "\ud800", "unpaired surrogate"),
        (PAIRS, "a", "expected a list of two texts or {'text', 'text_pair'}"),
        (PAIRS, {"text": "a"}, "got one text"),
        (PAIRS, [1, 2], "do not say to which text they belong"),
    ],
)
def test_invalid_items_are_rejected(codec: Codec, value: object, problem: str) -> None:
    assert problem in refused(codec, value)


def test_fully_masked_rows_are_refused() -> None:
    mask = np.array([[1, 0], [0, 1], [0, 0]])
    rows = dict(zip(NAMES, (np.full((3, 2), 4), mask, np.zeros((3, 2), np.int64)), strict=True))
    assert len(CODEC.decode_arrays({name: array[:2] for name, array in rows.items()})) == 2
    with pytest.raises(CallerError, match=r"inputs\[2\]: 'attention_mask': expected 1 in"):
        CODEC.decode_arrays(rows)


def test_text_with_token_ids_beyond_the_model() -> None:
    inputs = [text_manifest().inputs[0].model_copy(update={"minimum": 0, "maximum": 5})]
    manifest = text_manifest()
    manifest = manifest.model_copy(update={"inputs": (*inputs, *manifest.inputs[1:])})
    codec = codec_for(manifest, lambda _: tiny_tokenizer())
    assert arrays(codec.decode("a"))[0] == ids("[CLS]", "a", "[SEP]")
    assert "5" in refused(codec, "a dog")


def test_tokenizer_panic_is_a_client_error() -> None:
    fields = orjson.loads(tiny_tokenizer())
    fields["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}
    codec = codec_for(text_manifest(), lambda _: orjson.dumps(fields))
    assert "the tokenizer fails on the text: index out of bounds" in refused(codec, "a cat")


def test_texts_have_limits() -> None:
    message = refused(CODEC, "a" * (MAX_TEXT_CHARACTERS + 1))
    assert message == "a text may have at most 100000 characters, got 100001; split it"
    budget = Budget()
    for _ in range(20):
        CODEC.decode("a" * MAX_TEXT_CHARACTERS, budget)
    assert tiny_text_codec(text_codec(max_tokens=20_000)).decode("a" * 200_000).length == 3
    with pytest.raises(PayloadTooLarge, match="at most 2000000 characters in total"):
        CODEC.decode("a", budget)


def test_tokens_of_a_request_have_a_limit() -> None:
    codec, budget = tiny_text_codec(text_codec(max_tokens=600_000)), Budget()
    codec.decode([4] * 600_000, budget)
    with pytest.raises(PayloadTooLarge, match="at most 1000000 tokens in total"):
        codec.decode([4] * 600_000, budget)


def test_long_or_many_texts_leave_the_event_loop() -> None:
    assert CODEC.decode("cat " * 900, Budget(on_loop=True)).length == MAX_TOKENS
    with pytest.raises(TooLongForLoop):
        CODEC.decode("cat " * 1100, Budget(on_loop=True))
    with pytest.raises(TooLongForLoop):
        CODEC.decode("\ufdfa" * 700, Budget(on_loop=True))
    budget = Budget(on_loop=True)
    for _ in range(140):
        CODEC.decode([4] * MAX_TOKENS, budget)
    with pytest.raises(TooLongForLoop):
        CODEC.decode([4] * 600, budget)
    budget = Budget(on_loop=True)
    for _ in range(200):
        CODEC.decode("", budget)
    with pytest.raises(TooLongForLoop):
        CODEC.decode("cat " * 200, budget)


class TestPlainText:
    def read(self, body: bytes, content_type: str = "text/plain", many: bool = False) -> list[Item]:
        return read_items(CODEC, content_type, body, many=many, max_items=4)

    @pytest.mark.parametrize(
        "content_type",
        ["text/plain", "text/plain; charset=utf-8", 'Text/Plain;charset="UTF-8"; format=flowed'],
    )
    def test_is_one_text(self, content_type: str) -> None:
        (item,) = self.read(b"a cat\n", content_type)
        assert arrays(item) == arrays(CODEC.decode("a cat\n"))

    @pytest.mark.parametrize("charset", ["latin-1", "utf-16", ""])
    def test_of_another_charset_is_refused(self, charset: str) -> None:
        with pytest.raises(UnsupportedMediaType, match="must be in UTF-8"):
            self.read(b"a", f"text/plain; charset={charset}")

    @pytest.mark.parametrize("body", [b"caf\xe9", b"\xed\xa0\x80", b"a\xff"])
    def test_that_is_not_utf_8_is_refused(self, body: bytes) -> None:
        with pytest.raises(InvalidInput, match="the text is not UTF-8: byte 0x"):
            self.read(body)

    def test_is_never_several_texts(self) -> None:
        with pytest.raises(UnsupportedMediaType, match="is one text, not several; send them as"):
            self.read(b"one\ntwo", many=True)


@pytest.mark.parametrize("pair", [False, True])
def test_long_texts_are_tokenized_like_short_ones(pair: bool) -> None:
    """They are tokenised in another way, which does not hold the GIL."""
    codec = tiny_text_codec(text_codec(max_tokens=10_000, pairs=pair))
    text = "A cats in london " * 300  # of 17 characters each
    item = codec.decode([text, text] if pair else text)
    words = ids("a", "cat", "##s", "in", "london") * 300
    sep = ids("[SEP]")
    assert arrays(item)[0] == [*ids("[CLS]"), *words, *sep, *(words + sep if pair else [])]
    assert sum(arrays(item)[2]) == (len(words) + 1 if pair else 0)


class TestTokenClassification:
    LABELS = ("O", "B-ANIMAL", "I-ANIMAL", "B-PLACE")

    def codec(self, prompt: str = "") -> Codec:
        scores = spec("scores", shape=(-1, -1, 4))
        codec = text_codec(task="classify-tokens", labels=self.LABELS, prompt=prompt)
        return tiny_text_codec(codec, [scores])

    def spans(self, codec: Codec, text: str, *labels: int) -> list[dict[str, object]]:
        item = codec.decode(text)
        scores = np.full((item.length, 4), 0.05, np.float32)
        for at, label in enumerate(labels):
            scores[at, label] = 0.5 + at / 100
        answer = codec.encode({"scores": scores}, None, item.note)
        found = answer["spans"]
        assert isinstance(found, list)
        return found

    def test_token_runs_become_text_spans(self) -> None:
        animal, place = self.spans(self.codec(), "A CATS in London", 0, 0, 1, 2, 0, 3, 0)
        assert animal == {"label": "ANIMAL", "start": 2, "end": 6, "text": "CATS"} | {
            "score": pytest.approx((0.52 + 0.53) / 2)
        }
        assert (place["label"], place["text"]) == ("PLACE", "London")

    @pytest.mark.parametrize(
        ("best", "wanted"),
        [
            ((0, 0, 0), []),
            ((1, 1, 1), ["0-1", "1-2", "2-3"]),  # each begins a span
            ((2, 2, 3), ["0-2", "2-3"]),
            ((0, 2, 0), ["1-2"]),
            ((3, 0, 3), ["0-1", "2-3"]),
        ],
    )
    def test_spans_end_when_the_label_changes(self, best: Sequence[int], wanted: list[str]) -> None:
        places = np.array([(0, 0), (0, 1), (1, 2), (2, 3), (0, 0)], np.int32)
        scores = np.eye(4, dtype=np.float32)[[1, *best, 1]]  # those of special tokens do not count
        found = SpanFinder(self.LABELS).find(scores, "abc", places)
        assert [f"{each['start']}-{each['end']}" for each in found] == wanted
        assert all(each["score"] == 1 for each in found)

    def test_a_text_without_tokens_has_no_spans(self) -> None:
        nothing = np.zeros((2, 2), np.int32)
        assert SpanFinder(self.LABELS).find(np.zeros((2, 4)), "", nothing) == []

    def test_labelled_tokens_of_a_request_have_a_limit(self) -> None:
        codec = text_codec(
            task="classify-tokens", labels=self.LABELS, max_tokens=MAX_LABELLED_TOKENS
        )
        made = tiny_text_codec(codec, [spec("scores", shape=(-1, -1, 4))])
        budget = Budget()
        made.decode("a " * (MAX_LABELLED_TOKENS - 2), budget)
        with pytest.raises(
            PayloadTooLarge, match="texts of one request may have at most 32768 tok"
        ):
            made.decode("a", budget)
        made.decode([4] * MAX_LABELLED_TOKENS, Budget())

    def test_token_ids_get_only_scores(self) -> None:
        codec = self.codec()
        item = codec.decode(ids("cat"))
        assert list(codec.encode({"scores": np.zeros((1, 4))}, None, item.note)) == ["outputs"]

    def test_spans_exclude_special_tokens_and_prompt(self) -> None:
        found = self.spans(self.codec("new cat: "), "é dog", 1, 1, 1, 1, 1, 1, 1)
        assert [(each["start"], each["end"], each["text"]) for each in found] == [
            (0, 1, "é"),
            (2, 5, "dog"),
        ]


@pytest.mark.parametrize(
    ("tokenizer", "max_tokens", "problem"),
    [(b"{}", 8, "tokenizer.json: not a file of `tokenizers`"), (None, 2, "leave no room")],
)
def test_unusable_tokenizer_is_an_artifact_error(
    tokenizer: bytes | None, max_tokens: int, problem: str
) -> None:
    manifest = text_manifest(text_codec(max_tokens=max_tokens))
    with pytest.raises(ArtifactInvalid, match=problem):
        codec_for(manifest, lambda _: tokenizer or tiny_tokenizer())
    with pytest.raises(ArtifactInvalid, match="the artifact is not available"):
        codec_for(manifest)


def test_missing_tokenizers_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ArtifactInvalid, match=r"pip install 'torchlane\[text\]'"):
        codec_for(text_manifest(), lambda _: b"")


def test_text_without_tokens_is_refused() -> None:
    bare = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).to_str().encode()
    codec = codec_for(text_manifest(), lambda _: bare)
    assert "has 0 tokens, the model needs at least 1" in refused(codec, "")


def test_abandoned_texts_are_not_tokenized() -> None:
    left = iter([False, True])
    budget = Budget(is_left=lambda: next(left))
    CODEC.decode("cat", budget)
    with pytest.raises(Abandoned):
        CODEC.decode("cat", budget)


def test_wrong_text_of_a_batch_is_named() -> None:
    body = orjson.dumps({"inputs": ["cat", [3], "dog", 7]})
    with pytest.raises(CallerError) as error:
        read_items(CODEC, JSON, body, many=True, max_items=4)
    assert error.value.details[0]["index"] == 3
