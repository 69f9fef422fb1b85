"""What the author of a handler uses.

import torchlane

class Shop(torchlane.Handler):
    models = ("detector", "classifier")

    async def predict(self, request):
        picture = request.image()
        detected = await self.call("detector", picture)
        crops = [picture.crop(box) for box in detected["boxes"]]
        return {"kinds": await self.call_many("classifier", crops)}
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torchlane.handlers.content import Content
from torchlane.handlers.declarations import Tensor
from torchlane.handlers.tensors import arrays_in

if TYPE_CHECKING:
    import numpy as np

FIRST_ERROR = 400
NO_CONTENT = 204
WITHOUT_BODY = (NO_CONTENT, 205, 304)  # RFC 9110; it has no body, or would cut a connection
MEDIA_TYPE = re.compile(r"[!-~]+/[ -~]+")
MAX_MEDIA_TYPE = 256  # characters


class CallFailed(Exception):
    """A call of a model failed. If a handler does not catch it, its caller gets the same error.

    Attributes:
        model: that was called.
        status: as over HTTP.
        code: as over HTTP, such as "overloaded".
        retry_after_ms: when to try again; None if the server does not say so.
    """

    def __init__(
        self, model: str, status: int, code: str, error: str, retry_after_ms: float | None = None
    ) -> None:
        super().__init__(error)
        self.model = model
        self.status = status
        self.code = code
        self.retry_after_ms = retry_after_ms


class Response:
    """An answer of any media type.

    Args:
        body: raw bytes, or a text, which is encoded as UTF-8.
        media_type: the Content-Type: at most 256 characters of printable ASCII.
        status: from 200 to 599, but neither 205 nor 304; 204 has an empty body.

    Raises:
        TypeError, ValueError: an answer over HTTP cannot have it.
    """

    __slots__ = ("body", "media_type", "status")

    def __init__(self, body: bytes | str, media_type: str, status: int = 200) -> None:
        if not isinstance(body, str | bytes | bytearray | memoryview):
            raise TypeError(f"the body of a Response is bytes or str, not {type(body).__name__}")
        if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status < 600:
            raise ValueError(f"the status of a Response is from 200 to 599, not {status!r:.80}")
        if status in WITHOUT_BODY and (body or status != NO_CONTENT):
            raise ValueError(
                f"an answer with the status {status:d} has no body; use 200, or 204 with b''"
            )
        if (
            not isinstance(media_type, str)
            or not MEDIA_TYPE.fullmatch(media_type)
            or len(media_type) > MAX_MEDIA_TYPE
        ):
            raise ValueError(
                'a media type is ASCII text such as "image/png", of at most '
                f"{MAX_MEDIA_TYPE} characters, not {media_type!r:.80}"
            )
        self.body = body.encode() if isinstance(body, str) else bytes(body)
        self.media_type = media_type
        self.status = int(status)  # of an `http.HTTPStatus`, too


class Request(Content):
    """A caller's request.

    Attributes:
        body: raw bytes.
        media_type: the Content-Type with its parameters; empty if there is none.
        accept: the Accept header; empty if there is none.
        query: the parameters of the URL, each with its values.
        request_id: in logs and answers of the server.
        traceparent: W3C Trace Context, for what the handler sends to other servers; may be empty.
        deadline: on `time.monotonic`; the handler is cancelled then. Each item of a stream has as
            much time as the first.
        is_item: whether it is an item of a batch.
        wants_tensors: whether its answer must be the declared `outputs`, because it came by the
            Open Inference Protocol.
    """

    _inputs: Mapping[str, Tensor] = {}

    def __init__(self, body: bytes, meta: Mapping[str, Any]) -> None:
        super().__init__(body, meta.get("media_type", ""))
        self.accept: str = meta.get("accept", "")
        self.query: Mapping[str, Sequence[str]] = meta.get("query", {})
        self.request_id: str = meta.get("request_id", "")
        self.is_item = meta.get("item") is True
        self.wants_tensors = meta.get("tensors") is True
        self.traceparent: str = meta.get("traceparent", "")
        self._seconds: float = meta.get("timeout_ms", 0.0) / 1000
        self._renew()

    def _renew(self) -> None:
        """Begin its time again, for the next item of a stream."""
        self.deadline: float = time.monotonic() + self._seconds

    @cached_property
    def tensors(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The `inputs` that the handler declares, by name, each an array of its dtype.

        Those of dtype `bytes` are arrays of objects, each of type bytes.

        They come by the Open Inference Protocol, as an .npz file, or as JSON with lists by name,
        such as `{"x": [[1, 2, 3, 4]]}`.

        Raises:
            InvalidInput: the body has others.
            TypeError: the handler declares none.
            ImportError: the handler's interpreter has no numpy.
        """
        if not self._inputs:
            raise TypeError(
                "request.tensors needs a class with `inputs` and `outputs`, such as inputs = "
                '{"x": "float32[-1,4]"}'
            )
        return arrays_in(self, self._inputs)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())


class Models(Protocol):
    """How a handler reaches the served models."""

    async def call(self, model: str, x: Any, version: int | None, *, arrays: bool) -> Any:
        """See `Handler.call`."""

    async def call_many(
        self, model: str, xs: Sequence[Any], version: int | None, *, arrays: bool
    ) -> list[Any]:
        """See `Handler.call_many`."""

    def wait_for(self, call: Any) -> Any:
        """Run a coroutine of this object on the event loop, and wait for it in another thread."""


class Handler:
    """The base class of handlers. One object serves all requests of a process.

    A handler has `predict(self, request)` or, with `max_batch_size`, `predict_batch(self,
    requests)`, each either as `async def` or as `def`, which runs in a thread. `predict` returns
    the answer: what JSON can have, dataclasses, pydantic models, numpy arrays and numbers, a
    picture of Pillow (sent as PNG) or a `Response`. `predict_batch` returns a list with one answer
    for each request; an exception in that list fails its request alone. If it raises an exception
    for several requests, each of them is run again alone.

    The argument may be annotated with a pydantic model, in `predict_batch` with a list of it: then
    it is the object that the JSON of the body describes.

    Attributes:
        models: names of the models that it calls.
        max_batch_size: the most requests for one `predict_batch`.
        inputs: dtype and shape of each tensor of `Request.tensors` by name, such as `{"x":
            "float32[-1,4]"}`; axis 0 counts items and is -1, and so is any other axis of any size.
            Others are `1<=n<=512` within bounds, and integers may have a range, as in `"int64[-1,n]
            in 0..49"`. The dtype of texts and files is `bytes`. With them, clients of the Open
            Inference Protocol can call the handler.
        outputs: the same of the dict of arrays or lists that they get; `predict` returns it.
    """

    models: ClassVar[tuple[str, ...]] = ()
    max_batch_size: ClassVar[int] = 1
    inputs: ClassVar[Mapping[str, str]] = {}
    outputs: ClassVar[Mapping[str, str]] = {}
    _served: Models

    def setup(self) -> Any:
        """Prepare the process, once, before the first request; may be `async def`."""

    async def call(
        self, model: str, x: Any, version: int | None = None, *, arrays: bool = False
    ) -> Any:
        """Call a served model; it is batched with the calls of everybody else.

        Args:
            model: its name, one of `models`.
            x: a picture of Pillow, a numpy array, a dict of arrays, a text, numbers or what else
                JSON can have; bytes of a file (PNG, JPEG, WebP, GIF, WAV, FLAC, .npy, .npz); or a
                `Request`, which is sent as it came.
            version: of the model; None: the one that is served by default.
            arrays: return the outputs of a model as a dict of numpy arrays, without labels.

        Returns:
            The `prediction` of the model's answer, such as `{"label": ..., "scores": ...}`; of
            another handler what its JSON has, or a `Response` with its status if it has another
            media type.

        Raises:
            CallFailed: the model did not answer, or the other handler answered with a status of 400
                or more.
            TypeError, ValueError: `model`, `x` or `version` cannot be sent, or the other handler
                said that its answer is JSON, and it is not.
        """
        return await self._served.call(model, x, version, arrays=arrays)

    async def call_many(
        self, model: str, xs: Sequence[Any], version: int | None = None, *, arrays: bool = False
    ) -> list[Any]:
        """Call a served model with several items at once; the results are in order.

        Args and results: see `call`, but no `Request`.

        Raises:
            CallFailed: the model did not answer, or failed on an item.
            TypeError, ValueError: `xs` cannot be sent.
        """
        return await self._served.call_many(model, xs, version, arrays=arrays)

    def call_sync(
        self, model: str, x: Any, version: int | None = None, *, arrays: bool = False
    ) -> Any:
        """`call` for `def predict`, which runs in a thread; waits for the result."""
        return self._served.wait_for(self.call(model, x, version, arrays=arrays))

    def call_many_sync(
        self, model: str, xs: Sequence[Any], version: int | None = None, *, arrays: bool = False
    ) -> list[Any]:
        """`call_many` for `def predict`, which runs in a thread; waits for the results."""
        results: list[Any] = self._served.wait_for(
            self.call_many(model, xs, version, arrays=arrays)
        )
        return results
