"""Infer calls of handlers that declare `inputs` and `outputs`, by any transport."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from app.api.answers import LARGE_BYTES, Pieces
from app.api.handlers.batches import Item as HandlerBody
from app.api.handlers.call import REPLACED, HandlerCall
from app.api.oip.answers import (
    Output,
    check_outputs,
    octets_bytes,
    outputs_of,
    write_large_answer,
)
from app.api.oip.infer import check_answer, json_bytes_of, of_item, parse_body
from app.api.oip.requests import HEADER_LENGTH, RAW, InferRequest, Tensor
from app.api.oip.tensors import arrays_of
from app.codecs.base import NPZ, Budget
from app.codecs.datatypes import BYTES, DATATYPES
from app.codecs.declared import DeclaredTensors
from app.engine.submission import Submission
from app.errors import HandlerOutputs, InvalidInput, ModelNotReady, TorchlaneError
from app.handlers.contract import HandlerAnswer


class TensorCall(HandlerCall):
    """See `HandlerCall`; its answer is checked against the declared outputs.

    Attributes:
        request: the request in the body, without its inputs, once it has been read.
    """

    __slots__ = ("_outputs", "_rows", "_signature", "request")

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        super().read_head(fields)
        self.many = False
        self.parses = self.tensors = True
        self.request = RAW
        self._signature: DeclaredTensors | None = None
        self._rows = 0
        self._outputs: list[Output] = []

    def parsed(self, body: bytes, signature: DeclaredTensors, budget: Budget) -> InferRequest:
        """The request in a body.

        Raises:
            InvalidInput, PayloadTooLarge: if it is none.
        """
        raise NotImplementedError

    def written(self, outputs: Sequence[Output]) -> Pieces:
        """The body of the answer, and its headers."""
        raise NotImplementedError

    @property
    def signature(self) -> DeclaredTensors:
        """What the handler declares."""
        if self._signature is None:
            raise RuntimeError("bug: the handler of a call is asked for before it was looked up")
        return self._signature

    def _find(self) -> None:
        super()._find()
        signature = self._handler.tensors
        has_read = self._rows > 0  # by the declarations of the handler that it had then
        if signature is None or (has_read and self._signature is not signature):
            raise ModelNotReady(REPLACED)
        self._signature = signature
        if signature.item_elements:  # four bytes may be one
            self.small_bytes = LARGE_BYTES // 8
        self.check_handler()

    def check_handler(self) -> None:
        """Check that the handler can answer on this transport.

        Raises:
            InvalidInput: if it yields its answer.
        """
        if self._handler.manifest.streams:
            raise InvalidInput(
                f"the handler {self._handler.id.name!r} yields its answer, of which this call can "
                "have only one: use the gRPC call ModelStreamInfer, or POST "
                f"/models/{self._handler.id.name}/predict"
            )

    def _read(self, body: bytes) -> Sequence[HandlerBody]:
        signature, most = self.signature, self.service.limits.max_items
        request = self.parsed(body, signature, Budget(is_left=self._has_left))
        try:
            arrays = arrays_of(signature, request.inputs, most)
        except InvalidInput as error:
            raise of_item(error) from error
        check_outputs(signature.outputs, request)
        if any(each.classes for each in request.outputs or ()):
            raise InvalidInput("handlers have no classification; request the tensor")
        self.request = request._replace(inputs=())  # inputs may keep the whole body alive
        self.check_request()
        self.deadline = min(self.deadline, self.arrived_at + request.timeout_s)
        self._rows = request.inputs[0].shape[0]
        return [(NPZ, signature.packed(arrays))]

    def check_request(self) -> None:
        """Check what was read.

        Raises:
            NotAcceptable: if the caller does not accept the media type that it asks for.
        """

    def _count(self, bodies: Sequence[HandlerBody]) -> int:
        return self._rows

    def _submit(self, submission: Submission, bodies: Sequence[HandlerBody]) -> None:
        self._hold(sum(len(body) for _, body in bodies))  # numbers in JSON may become larger
        super()._submit(submission, bodies)

    def _have_ended(self, submission: Submission) -> None:
        if self.stream is not None:
            submission.complete()
            return
        answer = self._jobs[0].result()
        self._jobs = []
        size = len(answer.body)
        try:
            if size > LARGE_BYTES:
                self._work(submission, lambda: self._unpacked(answer), size, self._keep)
                return
            outputs = self._unpacked(answer)
        except TorchlaneError as error:
            submission.fail(error)
            return
        self._keep(submission, outputs)

    def _unpacked(self, answer: HandlerAnswer) -> list[Output]:
        if answer.media_type != NPZ:
            raise HandlerOutputs("the handler's answer has no outputs")
        return self.outputs(answer.body)

    def _keep(self, submission: Submission, outputs: list[Output]) -> None:
        self._outputs = outputs
        submission.complete()

    def outputs(self, body: bytes) -> list[Output]:
        """The requested outputs of an answer.

        Raises:
            HandlerOutputs: if it has not the declared outputs.
            NotAcceptable: if bytes that are not UTF-8 are to be JSON.
        """
        return outputs_of(self.signature.outputs, self.request, self.signature.unpacked(body))

    def _content(self) -> tuple[int, Pieces, int]:
        outputs, self._outputs = self._outputs, []
        return 200, self.written(outputs), sum(map(octets_bytes, outputs))


class InferHandlerCall(TensorCall):
    """See `InferCall`; of a handler."""

    __slots__ = ("_json_bytes",)

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        super().read_head(fields)
        self._json_bytes = json_bytes_of(fields)

    def parsed(self, body: bytes, signature: DeclaredTensors, budget: Budget) -> InferRequest:
        if self._json_bytes == 0:
            return RAW._replace(inputs=(_only_input(signature, body),))
        most = self.service.limits.max_items
        return parse_body(signature, body, self._json_bytes, most, budget)

    def check_request(self) -> None:
        check_answer(self.accept, self.request)

    def written(self, outputs: Sequence[Output]) -> Pieces:
        return write_large_answer(self._handler.id, self.request, outputs)


def _only_input(signature: DeclaredTensors, body: bytes) -> Tensor:
    """The input whose bytes are the whole body."""
    spec = signature.inputs[0]
    is_bytes = spec.dtype == "bytes"
    is_known = math.prod(spec.item_shape) == 1 if is_bytes else spec.is_fixed
    if len(signature.inputs) > 1 or not is_known:
        raise InvalidInput(
            f"{HEADER_LENGTH} is 0, so the body must be the bytes of the only input, of fixed "
            "shape, or its only text, but the handler has no such input"
        )
    if is_bytes:
        return Tensor(spec.name, BYTES, (1, *spec.item_shape), [body])
    count = len(body) // (spec.item_bytes)
    shape = (count, *spec.item_shape)
    return Tensor(spec.name, DATATYPES[spec.dtype], shape, memoryview(body))
