"""An infer call over gRPC, independent of grpcio so that it can be compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.api.answers import Pieces, in_parts
from app.api.memo import Written
from app.api.oip.answers import Output, outputs_in_steps
from app.api.oip.grpc.messages import InferMessage, response_parts
from app.api.oip.handlers import TensorCall
from app.api.oip.infer import OipCall
from app.api.oip.requests import RAW, InferRequest
from app.api.streams import PlainStream
from app.codecs.base import Budget
from app.codecs.declared import DeclaredTensors
from app.codecs.places import at_once
from app.types import Item, Outcome

ROUTE = "/inference.GRPCInferenceService/ModelInfer"
WANTS_END = "triton_enable_empty_final_response"  # Triton's parameter
STREAM_ROUTE = "/inference.GRPCInferenceService/ModelStreamInfer"


class GrpcInferCall(OipCall):
    """See `Call`.

    Attributes:
        message: the received message; dropped once it has been read.
    """

    __slots__ = ("message",)
    message: InferMessage | None

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        """Read nothing: the metadata has nothing of the protocol."""
        self.request = RAW

    def memo_text(self, body: bytes) -> str | None:
        """None, because reading a message again costs almost nothing."""
        return None

    def read(self, body: bytes) -> list[Item]:
        if self.message is None:
            raise RuntimeError("bug: a message was read twice")
        budget = self.budget()
        request = self.message.request(budget, self.service.limits.max_body_bytes)
        items = self.items_of(request, budget)
        self.message = None
        return items

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        outputs = at_once(outputs_in_steps(self.model, self.request, outcomes))
        return (), b"".join(response_parts(self.model.id, self.request.id, outputs))

    def write_large(self, outcomes: Sequence[Outcome]) -> Pieces:
        outputs = yield from outputs_in_steps(self.model, self.request, outcomes)
        for part in response_parts(self.model.id, self.request.id, outputs):
            yield from in_parts(memoryview(part))
        return ()

    def expected_bytes(self, array_bytes: int) -> int:
        return array_bytes


class GrpcHandlerCall(TensorCall):
    """See `HandlerCall`.

    Attributes:
        message: the received message; dropped once it has been read.
    """

    __slots__ = ("message",)
    message: InferMessage | None

    def parsed(self, body: bytes, signature: DeclaredTensors, budget: Budget) -> InferRequest:
        if self.message is None:
            raise RuntimeError("bug: a message was read twice")
        limits = self.service.limits
        elements = signature.most_elements(limits.max_items)
        request = self.message.request(budget, limits.max_body_bytes, elements)
        self.message = None
        return request

    def written(self, outputs: Sequence[Output]) -> Pieces:
        for part in response_parts(self._handler.id, self.request.id, outputs):
            yield from in_parts(memoryview(part))
        return ()


class GrpcStreamCall(GrpcHandlerCall):
    """See `HandlerCall`; a handler that yields answers with a stream of .npz files.

    Attributes:
        wants_end: whether an answer without outputs follows its items.
    """

    __slots__ = ("wants_end",)

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        super().read_head(fields)
        self.wants_end = False

    def parsed(self, body: bytes, signature: DeclaredTensors, budget: Budget) -> InferRequest:
        message = self.message
        request = super().parsed(body, signature, budget)
        self.wants_end = message is not None and message.parameters.get(WANTS_END) is True
        return request

    def check_handler(self) -> None:
        """Check nothing: it may yield, or not."""

    def _open_stream(self) -> None:
        if self._handler.manifest.streams:
            self.stream = PlainStream("", self._counts, self._taken, self._end)

    def message_of(self, item: bytes) -> bytes:
        """The ModelInferResponse with an item of the stream.

        Raises:
            HandlerOutputs: if the item has not the declared outputs.
        """
        return self._response(self.outputs(item))

    def end(self) -> bytes:
        """The ModelInferResponse after all items."""
        return self._response([])

    def _response(self, outputs: Sequence[Output]) -> bytes:
        return b"".join(response_parts(self._handler.id, self.request.id, outputs))
