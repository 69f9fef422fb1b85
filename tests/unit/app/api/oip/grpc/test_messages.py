"""Messages of infer calls: what is read, and what is refused before protobuf reads it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.oip.grpc.messages import CONTENTS, ENVELOPE_FIELDS, InferMessage
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.grpc.wire import written
from app.api.oip.requests import InferRequest, Tensor, Wanted
from app.codecs.base import Budget, TooLongForLoop
from app.errors import InvalidInput, PayloadTooLarge, TorchlaneError

MAX_BYTES = 1 << 20
TEXTS = st.text(max_size=20)
PARAMETERS = st.dictionaries(
    TEXTS,
    st.one_of(
        st.builds(lambda x: pb.InferParameter(bool_param=x), st.booleans()),
        st.builds(lambda x: pb.InferParameter(int64_param=x), st.integers(-(2**63), 2**63 - 1)),
        st.builds(lambda x: pb.InferParameter(string_param=x), TEXTS),
        st.builds(lambda x: pb.InferParameter(double_param=x), st.floats(allow_nan=False)),
        st.builds(lambda x: pb.InferParameter(uint64_param=x), st.integers(0, 2**64 - 1)),
    ),
    max_size=3,
)


def read(message: pb.ModelInferRequest | bytes, *, on_loop: bool = False) -> InferRequest:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    found = InferMessage(data, 100)
    return found.request(Budget(on_loop=on_loop), MAX_BYTES)


def one(**changes: Any) -> pb.ModelInferRequest:
    """A request with one input."""
    wanted = {"name": "x", "datatype": "FP32", "shape": [1, 2], **changes}
    return pb.ModelInferRequest(
        model_name="m", inputs=[pb.ModelInferRequest.InferInputTensor(**wanted)]
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_parser_reads_messages_written_by_protobuf(data: st.DataObject) -> None:
    shapes = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)
    message = pb.ModelInferRequest(
        model_name=data.draw(TEXTS), model_version=data.draw(TEXTS), id=data.draw(TEXTS)
    )
    for name in data.draw(st.lists(TEXTS, min_size=1, max_size=3)):
        tensor = message.inputs.add(name=name, datatype=data.draw(TEXTS), shape=data.draw(shapes))
        for key, value in data.draw(PARAMETERS).items():
            tensor.parameters[key].CopyFrom(value)
        message.raw_input_contents.append(data.draw(st.binary(max_size=300)))
    for name in data.draw(st.lists(TEXTS, max_size=3)):
        message.outputs.add(name=name).parameters["classification"].int64_param = 3
    parsed = InferMessage(message.SerializeToString(), 100)
    assert (parsed.name, parsed.version) == (message.model_name, message.model_version)
    found = parsed.request(Budget(), MAX_BYTES)
    assert found.id == message.id
    assert found.inputs == tuple(
        Tensor(each.name, each.datatype, tuple(each.shape), memoryview(raw))
        for each, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    )
    wanted = tuple(Wanted(each.name, True, 3) for each in message.outputs)
    assert found.outputs == (wanted or None)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_message_is_a_client_error(data: st.DataObject) -> None:
    message = one(contents=pb.InferTensorContents(fp32_contents=[1, 2]))
    message.parameters["timeout"].int64_param = 10
    whole = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not whole:
            break
    try:
        read(bytes(whole))
    except TorchlaneError:
        return


@pytest.mark.parametrize("cut", range(1, 30))
def test_truncated_message(cut: int) -> None:
    whole = one(name="x" * 30).SerializeToString()
    with pytest.raises(InvalidInput, match="malformed"):
        read(whole[:-cut])


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_endless_number(length: int) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        read(written(1, b"m") + b"\x50" + b"\x80" * length + b"\x01")


def test_raw_contents_between_other_fields() -> None:
    """A message that is cut in two, each with a tensor: protobuf joins what has no raw bytes."""
    first, second = one(name="a"), one(name="b", shape=[1, 1])
    first.raw_input_contents.append(b"12345678")
    second.raw_input_contents.append(b"1234")
    second.parameters["timeout"].int64_param = 2_000_000
    found = read(first.SerializeToString() + second.SerializeToString())
    assert [(each.name, bytes(each.data)) for each in found.inputs] == [  # type: ignore[arg-type]
        ("a", b"12345678"),
        ("b", b"1234"),
    ]
    assert found.timeout_s == 2


class TestParameters:
    def test_shared_memory(self) -> None:
        message = one(contents=pb.InferTensorContents(fp32_contents=[1, 2]))
        message.inputs[0].parameters["shared_memory_region"].string_param = "a"
        with pytest.raises(InvalidInput, match="shared memory"):
            read(message)
        message = one(contents=pb.InferTensorContents(fp32_contents=[1, 2]))
        message.outputs.add(name="y").parameters["shared_memory_region"].string_param = "a"
        with pytest.raises(InvalidInput, match="shared memory"):
            read(message)

    def test_a_negative_timeout(self) -> None:
        message = one(contents=pb.InferTensorContents(fp32_contents=[1, 2]))
        message.parameters["timeout"].int64_param = -1
        with pytest.raises(InvalidInput, match="timeout"):
            read(message)


class TestTypedContents:
    @pytest.mark.parametrize(
        ("datatype", "field", "dtype", "values"),
        [
            ("BOOL", "bool_contents", "?", [True, False]),
            ("INT8", "int_contents", "<i1", [-128, 127]),
            ("INT16", "int_contents", "<i2", [-(2**15), 2**15 - 1]),
            ("INT32", "int_contents", "<i4", [-(2**31), 2**31 - 1]),
            ("INT64", "int64_contents", "<i8", [-(2**63), 2**63 - 1]),
            ("UINT8", "uint_contents", "<u1", [0, 255]),
            ("UINT16", "uint_contents", "<u2", [1, 2**16 - 1]),
            ("UINT32", "uint_contents", "<u4", [300, 2**32 - 1]),
            ("UINT64", "uint64_contents", "<u8", [300, 2**64 - 1]),
            ("FP32", "fp32_contents", "<f4", [1.5, -math.inf]),
            ("FP64", "fp64_contents", "<f8", [0.1, 1e300]),
        ],
    )
    def test_typed_numbers_become_raw_bytes(
        self, datatype: str, field: str, dtype: str, values: list[Any]
    ) -> None:
        contents = pb.InferTensorContents(**{field: values})
        (tensor,) = read(one(datatype=datatype, contents=contents)).inputs
        assert bytes(tensor.data) == np.array(values, dtype).tobytes()  # type: ignore[arg-type]

    def test_every_datatype_is_covered(self) -> None:
        descriptor = pb.InferTensorContents.DESCRIPTOR
        assert set(CONTENTS.values()) == set(descriptor.fields_by_name)

    def test_elements_of_bytes(self) -> None:
        contents = pb.InferTensorContents(bytes_contents=[b"", b"abc"])
        (tensor,) = read(one(datatype="BYTES", shape=[2], contents=contents)).inputs
        assert tensor.data == [b"", b"abc"]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({}, "no contents"),
            ({"contents": pb.InferTensorContents(int_contents=[1, 2])}, "not those of FP32"),
            ({"datatype": "FP16", "contents": pb.InferTensorContents()}, "raw_input_contents"),
            ({"datatype": "fp32", "contents": pb.InferTensorContents()}, "raw_input_contents"),
            ({"shape": [], "contents": pb.InferTensorContents()}, "1 to 32 sizes"),
            ({"shape": [1] * 33, "contents": pb.InferTensorContents()}, "sizes"),
            ({"shape": [1] * 400, "contents": pb.InferTensorContents()}, "sizes"),
            ({"shape": [-1, 2], "contents": pb.InferTensorContents()}, "at least 0"),
            (
                {"datatype": "INT8", "contents": pb.InferTensorContents(int_contents=[1])},
                "expected 2 numbers, got 1",
            ),
            (
                {"datatype": "INT8", "contents": pb.InferTensorContents(int_contents=[128, 1])},
                "range of int8",
            ),
            (
                {"datatype": "UINT8", "contents": pb.InferTensorContents(uint_contents=[256, 1])},
                "range of uint8",
            ),
        ],
    )
    def test_wrong_contents(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            read(one(**changes))

    def test_both_content_kinds_and_wrong_counts(self) -> None:
        message = one(contents=pb.InferTensorContents(fp32_contents=[1, 2]))
        message.raw_input_contents.append(b"12345678")
        with pytest.raises(InvalidInput, match="too"):
            read(message)
        message = one()
        message.raw_input_contents.extend([b"12345678", b""])
        with pytest.raises(InvalidInput, match="2 raw_input_contents for 1 inputs"):
            read(message)
        with pytest.raises(InvalidInput, match="at least one"):
            read(pb.ModelInferRequest(model_name="m"))

    def test_long_contents_leave_the_event_loop(self) -> None:
        contents = pb.InferTensorContents(fp32_contents=[1] * 10_000)
        with pytest.raises(TooLongForLoop):
            read(one(shape=[1, 10_000], contents=contents), on_loop=True)


class TestLimits:
    def test_too_many_fields(self) -> None:
        with pytest.raises(PayloadTooLarge, match=f"{ENVELOPE_FIELDS + 100} fields"):
            read(b"\x22\x00" * (ENVELOPE_FIELDS + 101))
        contents = pb.InferTensorContents(bytes_contents=[b""] * ENVELOPE_FIELDS * 2)
        with pytest.raises(PayloadTooLarge, match="fields"):
            read(
                pb.ModelInferRequest(
                    inputs=[one(datatype="BYTES", contents=contents).inputs[0]] * 2
                )
            )

    def test_as_many_elements_as_a_handler_takes(self) -> None:
        contents = pb.InferTensorContents(bytes_contents=[b""] * ENVELOPE_FIELDS * 2)
        message = one(datatype="BYTES", contents=contents).SerializeToString()
        for elements, is_read in ((2 * ENVELOPE_FIELDS, True), (ENVELOPE_FIELDS - 200, False)):
            with nullcontext() if is_read else pytest.raises(PayloadTooLarge, match="fields"):
                InferMessage(message, 100).request(Budget(), MAX_BYTES, elements)

    def test_too_many_tensors(self) -> None:
        message = pb.ModelInferRequest(inputs=[pb.ModelInferRequest.InferInputTensor()] * 65)
        with pytest.raises(InvalidInput, match="65 inputs"):
            read(message)

    def test_numbers_that_exceed_the_limit_when_decoded(self) -> None:
        """A byte of a varint may become eight."""
        contents = pb.InferTensorContents(int64_contents=[1] * (MAX_BYTES // 8 + 1))
        with pytest.raises(PayloadTooLarge, match="limit"):
            read(one(datatype="INT64", shape=[MAX_BYTES // 8 + 1], contents=contents))
        with pytest.raises(PayloadTooLarge, match="limit"):
            read(one(shape=[1] * (MAX_BYTES // 8 + 1)))
