"""Text models over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.codecs.text import MAX_TEXT_CHARACTERS
from export.artifact import digest_of
from tests.artifacts import change_manifest
from tests.integration.listening import Listening, listening
from tests.integration.wire import WireAnswer, request
from tests.texts import IDS, TinyTagger, piece_tokenizer, tiny_tokenizer, write_text

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLAIN = "text/plain"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    folder = tmp_path_factory.mktemp("models")
    write_text(folder)
    write_text(folder, "pairs", task="rerank", pairs=True)
    labels = ("O", "B-X", "I-X")
    for name, tokenizer in (("tags", None), ("pieces", piece_tokenizer())):
        write_text(
            *(folder, name),
            module=TinyTagger(),
            tokenizer=tokenizer,
            task="classify-tokens",
            labels=labels,
            scores="softmax",
        )
    async with listening(
        folder, default_model="text", max_items=64, request_timeout_ms=120_000
    ) as made:
        yield made


def sent(value: object, path: str = "/predict", **headers: Any) -> bytes:
    key = "inputs" if "batch" in path else "input"
    return request(path, json.dumps({key: value}).encode(), **headers)


def plain(body: bytes, content_type: str = PLAIN, path: str = "/predict") -> bytes:
    return request(path, body, content_type=content_type)


def embedding(*words: str) -> list[Any]:
    ids = [IDS[each] for each in ("[CLS]", *words, "[SEP]")]
    return [pytest.approx(sum(ids) / len(ids)), 0]


def outputs(answer: WireAnswer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json()["prediction"]["outputs"]["embedding"]


async def test_a_text_in_json_and_plain(server: Listening) -> None:
    wanted = embedding("a", "cat", "##s")
    assert outputs(await server.ask(sent("a cats"))) == wanted
    answer = await server.ask(plain(b"A CATS", "text/plain; charset=utf-8"))
    assert outputs(answer) == wanted
    assert answer["x-torchlane-cache"] == "hit"  # the same tokens
    ids = [IDS[each] for each in ("[CLS]", "a", "cat", "##s", "[SEP]")]
    assert (await server.ask(sent(ids)))["x-torchlane-cache"] == "hit"


async def test_each_text_reports_its_own_cut(server: Listening) -> None:
    """Two texts whose tokens are equal share a prediction, and each is told its own cut."""
    for _ in range(3):  # computed, then cached, then remembered
        for count in (7, 9):
            answer = await server.ask(sent("dog " * count))
            assert answer.json()["prediction"]["details"] == {"tokens": 8, "cut": count - 6}
    assert answer["x-torchlane-cache"] == "hit"


async def test_pairs(server: Listening) -> None:
    path = "/models/pairs/predict"
    ids = [IDS[each] for each in ("[CLS]", "a", "[SEP]", "b", "[SEP]")]
    wanted = [pytest.approx(sum(ids) / 5), pytest.approx((ids[3] + ids[4]) / 5)]
    for value in (["a", "b"], {"text": "a", "text_pair": "b"}):
        assert outputs(await server.ask(sent(value, path))) == wanted
    answer = await server.ask(plain(b"a", path=path))
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


async def test_spans_of_tokens(server: Listening) -> None:
    """Ids modulo 3 are the labels: of `dog` 1, of `##s` 2, of `in` 0, of `london` 1."""
    for _ in range(2):
        answer = await server.ask(sent("Dogs in  London", "/models/tags/predict"))
        score = pytest.approx(0.986703, abs=1e-5)
        assert answer.json()["prediction"] == {
            "spans": [
                {"label": "X", "score": score, "start": 0, "end": 4, "text": "Dogs"},
                {"label": "X", "score": score, "start": 9, "end": 15, "text": "London"},
            ]
        }
    # The same tokens, other places.
    answer = await server.ask(sent("dogs in london", "/models/tags/predict"))
    assert answer["x-torchlane-cache"] == "hit"
    assert [each["start"] for each in answer.json()["prediction"]["spans"]] == [0, 8]


HOSTILE: dict[str, tuple[bytes, str, int]] = {
    "surrogate": (b'{"input": "\\ud800"}', "application/json", 422),
    "surrogate as bytes": (b'{"input": "\xed\xa0\x80"}', "application/json", 422),
    "nul": (b'{"input": "\\u0000"}', "application/json", 200),
    "nuls": (b"\0" * 10_000, PLAIN, 200),
    "empty": (b"", PLAIN, 200),
    "not UTF-8": (b"caf\xe9", PLAIN, 422),
    "charset": (b"cat", "text/plain; charset=latin-1", 415),
    "zalgo": (b"a" + "\u0301".encode() * 50_000, PLAIN, 200),
    "one word": (b"a" * 90_000, PLAIN, 200),
    "too long": (b"a" * (MAX_TEXT_CHARACTERS + 1), PLAIN, 422),
    "far too long": (b"cat " * 2_500_000, PLAIN, 422),
    "marks in strings": (json.dumps({"input": '[{",\\"[' * 14_000}).encode(), "", 200),
    "lists": (b'{"input": ' + b"[" * 200_000, "application/json", 413),
    "a million ids": (b'{"input": [' + b"4," * 1_000_000 + b"4]}", "application/json", 413),
    "ids": (b'{"input": [' + b"4," * 20_000 + b"4]}", "application/json", 422),
    "no id": (b'{"input": [12]}', "application/json", 422),
}


async def test_hostile_texts_get_an_answer(server: Listening) -> None:
    for name, (body, content_type, status) in HOSTILE.items():
        answer = await server.ask(plain(body, content_type or "application/json"))
        assert answer.status == status, (name, answer.body[:500])
        assert len(answer.body) < 2000, name
        assert outputs(await server.ask(sent("cat"))) == embedding("cat"), name


async def test_a_broken_tokenizer_does_not_stop_the_server(tmp_path: Path) -> None:
    write_text(tmp_path)
    broken = write_text(tmp_path, "broken")
    file = broken / "tokenizer.json"
    file.write_bytes(tiny_tokenizer().replace(b'"WordPiece"', b'"WordPiecf"'))
    digest = digest_of(file).model_dump()
    change_manifest(broken, lambda manifest: manifest["files"].update({file.name: digest}))
    async with listening(tmp_path, default_model="text", required_models="text") as server:
        found = (await server.ask(request("/models/broken", b"", method="GET"))).json()
        assert found["state"] == "failed"
        problem = found["versions"][0]["problem"]
        assert problem.startswith("tokenizer.json: not a file of `tokenizers`: ")
        assert outputs(await server.ask(sent("cat"))) == embedding("cat")


async def test_tensors_of_the_open_inference_protocol(server: Listening) -> None:
    """Clients of the protocol tokenise themselves; their items share the cache with texts."""
    ids = [IDS[each] for each in ("[CLS]", "a", "cat", "[SEP]")]
    rows = {"input_ids": ids, "attention_mask": [1] * 4, "token_type_ids": [0] * 4}
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, 4], "data": row}
        for name, row in rows.items()
    ]
    assert outputs(await server.ask(sent("a cat"))) == embedding("a", "cat")
    asked = request("/v2/models/text/infer", json.dumps({"inputs": inputs}).encode())
    answer = await server.ask(asked)
    assert answer.json()["outputs"][0]["data"] == embedding("a", "cat")
    assert answer["x-torchlane-cache"] == "hit=1, miss=0, joined=0"
    inputs[0]["data"] = [2, 4, 12, 3]
    asked = request("/v2/models/text/infer", json.dumps({"inputs": inputs}).encode())
    refused = await server.ask(asked)
    assert refused.status == 400
    assert "expected whole numbers in 0..11" in refused.json()["error"]


def bytes_of(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def as_oip(tensor: dict[str, Any], octets: bytes = b"", model: str = "text") -> bytes:
    head = json.dumps({"inputs": [{"datatype": "BYTES", **tensor}]}).encode()
    length: dict[str, Any] = {"inference_header_content_length": len(head)} if octets else {}
    return request(f"/v2/models/{model}/infer", head + octets, **length)


async def test_texts_of_the_open_inference_protocol(server: Listening) -> None:
    wanted = [*embedding("cat"), *embedding("a", "dog")]
    octets = bytes_of(b"cat", b"a dog")
    binary = {"parameters": {"binary_data_size": len(octets)}}
    for tensor, body in (
        ({"shape": [2], "data": ["cat", "a dog"]}, b""),
        ({"shape": [2, 1], "data": [["cat"], ["a dog"]]}, b""),
        ({"shape": [2], **binary}, octets),
        ({"shape": [2], **binary}, octets),  # its head is known
    ):
        for name in ("text", "input_ids", "other"):
            answer = await server.ask(as_oip({"name": name, **tensor}, body))
            assert answer.status == 200, answer.body
            assert answer.json()["outputs"][0]["data"] == wanted
    pair = {"name": "p", "shape": [1, 2], "data": ["a", "b"]}
    named = request("/models/pairs/predict", json.dumps({"input": ["a", "b"]}).encode())
    answer = await server.ask(as_oip(pair, model="pairs"))
    assert answer.json()["outputs"][0]["data"] == outputs(await server.ask(named))


@pytest.mark.parametrize(
    ("tensor", "octets", "message"),
    [
        ({"shape": [2], "data": ["cat"]}, b"", "1 texts for the shape [2]"),
        ({"shape": [2], "data": [["cat", "dog"]]}, b"", "2 texts in an item for the shape [2]"),
        ({"shape": [1, 2], "data": ["a", "b"]}, b"", "must have shape [n] or [n, 1]"),
        ({"shape": [2], "data": ["cat", 1]}, b"", "item 1: expected a text, got a number"),
        (
            {"shape": [1], "parameters": {"binary_data_size": 5}},
            bytes_of(b"\xff"),
            "item 0: the text is not UTF-8: byte 0xff at 0",
        ),
        (
            {"shape": [1], "parameters": {"binary_data_size": 4}},
            b"\x09\0\0\0",
            "element 0 claims 9 bytes, 0 are left",
        ),
    ],
)
async def test_texts_that_are_none(
    server: Listening, tensor: dict[str, Any], octets: bytes, message: str
) -> None:
    answer = await server.ask(as_oip({"name": "text", **tensor}, octets))
    assert answer.status == 400
    assert message in answer.json()["error"]


async def test_large_texts_are_not_digested(server: Listening) -> None:
    """That would take the event loop longer than it takes a thread to read them."""
    body = json.dumps({"inputs": ["cat " * 20_000] * 14}).encode()
    before = server.service.memo.used_bytes
    for _ in range(3):
        answer = await server.ask(request("/batch-predict", body))
        assert answer.status == 200
    assert server.service.memo.used_bytes == before
