"""A prediction call: what its head says, what it may skip, and what it answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from app.api.answers import LargeAnswer
from app.api.calls import Call
from app.api.endpoints import Endpoint
from app.api.errors import RawAnswer
from app.api.native.predictions import NativeCall
from app.api.service import Service
from app.codecs.tensor import TensorCodec
from app.engine.batch_runner import Contract
from app.errors import (
    BackendFailed,
    DeadlineExceeded,
    InvalidInput,
    ModelNotFound,
    PayloadTooLarge,
)
from app.registry.weights import digest_of
from app.types import Item, ModelId
from models.manifest import Manifest
from tests.artifacts import write_artifact
from tests.integration.listening import listening

SINGLE = Endpoint("/predict", NativeCall)
BATCH = Endpoint("/batch-predict", NativeCall, many=True)
BODY = b'{"input": [1, 2]}'
OCTETS = "application/octet-stream"
TIMEOUT_S = 30.0


class CountingCodec(TensorCodec):
    """Knows how many bodies it has read."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.read = 0

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        self.read += 1
        return super().decode_numbers(key, body, max_items=max_items)


def counting(service: Service) -> CountingCodec:
    """Have the default model's bodies counted."""
    model = service.loaded.resolve()
    codec = CountingCodec(model.manifest)
    service.loaded.publish(dataclasses.replace(model, codec=codec))
    return codec


def begun(service: Service, endpoint: Endpoint = SINGLE, **headers: str) -> Call:
    given = {name.replace("_", "-").encode(): v.encode() for name, v in headers.items()}
    call: Call = endpoint.call(service, endpoint, given)
    return call


async def answered(
    service: Service, body: bytes = BODY, endpoint: Endpoint = SINGLE, **headers: str
) -> RawAnswer:
    call = begun(service, endpoint, **headers)
    await call.begin(body).settled()
    answer = call.answer()
    return await answer.encoded() if isinstance(answer, LargeAnswer) else answer


def publish_weighted(service: Service) -> None:
    """Give half of the requests to a version that no replica can run."""
    model = service.loaded.resolve()
    settings = dataclasses.replace(model.settings, weights={1: 1, 2: 1})
    for version in (1, 2):
        published = model.id._replace(version=version)
        service.loaded.publish(dataclasses.replace(model, id=published, settings=settings))


def found(answer: RawAnswer) -> bytes:
    return dict(answer[1])[b"x-torchlane-cache"]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    write_artifact(tmp_path, "double")
    async with listening(tmp_path, request_timeout_ms=TIMEOUT_S * 1000, max_body_bytes=1000) as s:
        yield s.service


async def test_a_version_without_a_replica_leaves_its_share_to_the_others(service: Service) -> None:
    publish_weighted(service)
    bodies = [b'{"input": [%d, 2]}' % number for number in range(20)]
    split = service.loaded.split("double")
    assert split is not None
    assert {split.ranked(digest_of(body))[0] for body in bodies} == {1, 2}
    for body in bodies:
        assert json.loads((await answered(service, body))[2])["version"] == 1


class TestHead:
    async def test_timeout_header_sets_the_deadline(self, service: Service) -> None:
        for given, wanted_s in (("250", 0.25), ("1e3", 1.0), ("99999999", 30.0)):
            left_s = begun(service, x_torchlane_timeout_ms=given).deadline - service.engine.now()
            assert wanted_s - 0.5 < left_s <= wanted_s

    async def test_invalid_timeout_is_refused(self, service: Service) -> None:
        for given in ("", "0", "-1", "nan", "inf", "-inf", "soon", "1,5", "0x10", "1_0"):
            with pytest.raises(InvalidInput, match="positive number, got"):
                begun(service, x_torchlane_timeout_ms=given)

    async def test_passed_deadline_is_refused(self, service: Service) -> None:
        call = begun(service, x_torchlane_timeout_ms="0.000001")
        with pytest.raises(DeadlineExceeded, match="allow more"):
            call.begin(BODY)

    async def test_content_length_is_limited(self, service: Service) -> None:
        begun(service, content_length="1000")
        for given in ("1001", "9" * 5000):
            with pytest.raises(PayloadTooLarge, match="1000"):
                begun(service, content_length=given)

    async def test_unknown_models_are_refused(self, service: Service) -> None:
        begun(service, Endpoint("r", NativeCall, name="double", version="1"))
        for version in ("2", "9" * 5000, "x", "-1", "\u0663", ""):
            with pytest.raises(ModelNotFound):
                begun(service, Endpoint("r", NativeCall, name="double", version=version))
        with pytest.raises(ModelNotFound):
            begun(service, Endpoint("r", NativeCall, name="nope"))


async def test_call_not_begun_has_no_answer(service: Service) -> None:
    with pytest.raises(RuntimeError, match="bug"):
        begun(service).answer()


class TestRepeatedBodies:
    async def test_third_equal_body_is_not_read(self, service: Service) -> None:
        codec = counting(service)
        answers = [await answered(service) for _ in range(5)]
        assert codec.read == 2
        assert {content for _, _, content in answers} == {answers[0][2]}
        assert [found(each) for each in answers] == [b"miss"] + [b"hit"] * 4

    async def test_answer_is_kept_per_media_type(self, service: Service) -> None:
        codec = counting(service)
        wanted = np.array([2, 4], "<f4").tobytes()
        for _ in range(3):
            await answered(service)
            octets = await answered(service, accept="application/octet-stream")
            assert octets[2] == wanted
            assert dict(octets[1])[b"content-type"] == b"application/octet-stream"
        assert (await answered(service, accept="application/json"))[2].startswith(b"{")
        assert codec.read == 3  # the answer that is kept is a JSON one

    async def test_equal_body_of_another_type_is_read_again(self, service: Service) -> None:
        octets = np.array([1, 2], "<f4").tobytes()
        for _ in range(3):
            await answered(service, octets, content_type="application/octet-stream; x=y")
        with pytest.raises(InvalidInput, match="not JSON"):
            begun(service, content_type="application/json").begin(octets)

    async def test_evicted_items_are_computed_again(self, tmp_path: Path) -> None:
        write_artifact(tmp_path, "double")
        async with listening(tmp_path, cache_bytes=8000) as server:
            service = server.service
            codec = counting(service)
            for _ in range(3):
                await answered(service)
            assert (codec.read, service.memo.used_bytes > 0) == (2, True)
            for number in range(30):
                await answered(service, b'{"input": [%d, 9]}' % number)
            again = await answered(service)
            assert found(again) == b"miss"
            assert codec.read == 2 + 30 + 1
            assert found(await answered(service)) == b"hit"

    async def test_republished_version_shares_no_answer(self, service: Service) -> None:
        for _ in range(3):
            await answered(service)
        contract = Contract(("y",), lambda _: None, lambda outputs: outputs)
        service.engine.publish(ModelId("double", 1), "digest:another", contract)
        assert found(await answered(service)) == b"miss"

    async def test_repeated_body_still_checks_the_deadline(self, service: Service) -> None:
        for _ in range(3):
            await answered(service)
        call = begun(service, x_torchlane_timeout_ms="0.000001")
        with pytest.raises(DeadlineExceeded):
            call.begin(BODY)

    async def test_equal_body_to_another_route_is_read_again(self, service: Service) -> None:
        for _ in range(3):
            await answered(service)
        with pytest.raises(InvalidInput):
            begun(service, BATCH).begin(BODY)


class TestFailedItems:
    """The model fails on 500, and answers -500 with NaN."""

    BODY = b'{"inputs": [[1, 2], [500, 2], [-500, 2], [4, 2]]}'

    async def test_failed_item_keeps_its_position(self, service: Service) -> None:
        _, _, content = await answered(service, self.BODY, BATCH)
        first, failed, nan, last = json.loads(content)["predictions"]
        assert (first, last) == ({"outputs": {"y": [2, 4]}}, {"outputs": {"y": [8, 4]}})
        assert (failed["code"], nan["code"]) == ("backend_failed", "non_finite_output")

    @pytest.mark.parametrize(
        ("body", "accept", "message", "failed"),
        [
            (b'{"inputs": [[500, 2], [-500, 2]]}', "", "2 of 2 items failed", [0, 1]),
            (BODY, OCTETS, "2 of 4 items failed", [1, 2]),
        ],
    )
    async def test_request_fails(
        self, service: Service, body: bytes, accept: str, message: str, failed: list[int]
    ) -> None:
        """If all items do; or if any does, and the answer cannot show it."""
        with pytest.raises(BackendFailed, match=message) as caught:
            await answered(service, body, BATCH, accept=accept)
        codes = ["backend_failed", "non_finite_output"]
        assert list(caught.value.details) == [
            {"index": index, "code": code} for index, code in zip(failed, codes, strict=True)
        ]


async def test_oversized_answer_is_refused(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with listening(tmp_path, max_answer_bytes=16) as server:
        await answered(server.service, b'{"inputs": [[1, 2], [3, 4]]}', BATCH)
        for accept in ("", "application/octet-stream"):
            with pytest.raises(PayloadTooLarge, match="24 bytes"):
                await answered(
                    server.service, b'{"inputs": [[1, 2], [3, 4], [5, 6]]}', BATCH, accept=accept
                )
