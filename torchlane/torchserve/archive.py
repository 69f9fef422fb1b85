"""Runs a TorchServe archive: its handler, its files, and the served model in place of its own."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from torchlane.handlers import api
from torchlane.handlers.api import Request, Response
from torchlane.handlers.content import FORM, InvalidInput
from torchlane.handlers.plain import json_of
from torchlane.torchserve.context import Context, RequestProcessor
from torchlane.torchserve.names import install
from torchlane.torchserve.util import PredictionException, list_classes_from_module

MANIFEST = Path("MAR-INF", "MANIFEST.json")
URLENCODED = "application/x-www-form-urlencoded"


class Handler(api.Handler):
    """Answers requests by the handler of an archive, whose files are next to the class's module.

    Its requests come one batch after the other. A subclass has these constants, beside those of
    `torchlane.Handler`:

    Attributes:
        model_inputs, model_outputs: names, in the model's order, of the served model, if
            `models` names one; then `self.model` of the archive's handler calls it.
        model_is_tensor: whether the model returns a tensor; else a tuple or a dict of tensors.
    """

    model_inputs: ClassVar[tuple[str, ...]] = ()
    model_outputs: ClassVar[tuple[str, ...]] = ()
    model_is_tensor: ClassVar[bool] = True

    def setup(self) -> None:
        """Import the archive's handler and initialize it.

        Raises:
            Exception: of its code.
        """
        install()
        folder = Path(str(sys.modules[type(self).__module__].__file__)).parent
        manifest = json.loads((folder / MANIFEST).read_text())
        model = manifest["model"]
        self._context = Context(
            model["modelName"],
            str(folder),
            manifest,
            self.max_batch_size,
            model_yaml_config=_configuration(folder, model.get("configFile")),
        )
        if self.models:
            self._context.served_model = self._served_model()
        self._handle = self._initialized(model["handler"])

    def predict(self, request: Request) -> Any:
        """Answer one request."""
        return self.predict_batch([request])[0]

    def predict_batch(self, requests: list[Request]) -> list[Any]:
        """Answer requests that came together.

        Raises:
            Exception: of the handler's code.
        """
        context = self._context
        context.request_ids = {at: each.request_id for at, each in enumerate(requests)}
        context.request_processor = [RequestProcessor(_headers(each)) for each in requests]
        rows = [_row(each) for each in requests]
        for each in requests:
            each.accept = ""  # as in TorchServe, the handler alone chooses the media type
        try:
            answers = self._handle(rows, context)
        except PredictionException as error:
            if len(requests) > 1:  # one of them is at fault: each is run again alone
                raise
            return [_failure(error.error_code, error.message)]
        if not isinstance(answers, list) or len(answers) != len(requests):
            size = f" of {len(answers)}" if isinstance(answers, list) else ""
            raise TypeError(
                f"its handle returns a list with one answer for each request: got a "
                f"{type(answers).__name__}{size} for {len(requests)} requests"
            )
        return [self._answer(at, answer) for at, answer in enumerate(answers)]

    def _answer(self, at: int, answer: Any) -> Any:
        status = self._context.get_response_status(at)[0] or 200
        media_type = self._context.get_response_content_type(at)
        if type(answer).__name__ == "Tensor":
            import torch  # noqa: PLC0415 # the handler has imported it

            file = io.BytesIO()
            torch.save(answer, file)
            answer = file.getvalue()
        if isinstance(answer, str):
            return Response(answer, media_type or "text/plain; charset=utf-8", status)
        if isinstance(answer, bytes | bytearray):
            return Response(bytes(answer), media_type or "application/octet-stream", status)
        if status == 200 and media_type in (None, "application/json"):
            return answer
        return Response(json_of(answer), media_type or "application/json", status)

    def _served_model(self) -> Any:
        from torchlane.torchserve.served import ServedModel  # noqa: PLC0415 # imports torch

        name, _, version = self.models[0].partition("/")

        def call(items: Sequence[Any]) -> Any:
            return self.call_many_sync(name, items, int(version) if version else None, arrays=True)

        return ServedModel(name, call, self.model_inputs, self.model_outputs, self.model_is_tensor)

    def _initialized(self, handler: str) -> Callable[[Any, Any], Any]:
        """The function that answers batches, of a handler that is ready.

        Args:
            handler: a file or one of TorchServe's own handlers; behind a colon, a function.

        Raises:
            ValueError: the file has no such function, and not one class.
        """
        file, _, function = handler.partition(":")
        name = file.rpartition("/")[2].removesuffix(".py")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            module = importlib.import_module(f"ts.torch_handler.{name}")
        entry = getattr(module, function or "handle", None)
        if entry is not None:
            entry(None, self._context)  # initializes it
            for each in vars(module).values():
                self._give_model(each)
            return entry  # type: ignore[no-any-return] # whatever its code has
        kinds = list_classes_from_module(module)
        if len(kinds) != 1:
            raise ValueError(
                f"{handler} must have one class or a function `handle`; it has the classes "
                f"{', '.join(kind.__name__ for kind in kinds) or 'none'}"
            )
        service = kinds[0]()
        service.initialize(self._context)
        self._give_model(service)
        return service.handle  # type: ignore[no-any-return]

    def _give_model(self, service: Any) -> None:
        """Let a handler that has loaded a model of its own use the served one."""
        from torchlane.torchserve.base import BaseHandler  # noqa: PLC0415 # imports torch

        if self._context.served_model is not None and isinstance(service, BaseHandler):
            service.model = self._context.served_model


def _configuration(folder: Path, file: str | None) -> Mapping[str, Any]:
    """What the archive's configuration file has."""
    if file is None:
        return {}
    import yaml  # noqa: PLC0415 # only a few archives need it

    return yaml.safe_load((folder / file).read_text()) or {}


def _failure(status: int, message: str) -> Response:
    """The error of a handler in the form of TorchServe."""
    status = status if 400 <= status < 600 else 500
    told = {"code": status, "type": "InternalServerException", "message": message}
    return Response(json_of(told), "application/json", status)


def _headers(request: Request) -> dict[str, str]:
    """The headers of a request that reach handlers."""
    headers = {
        "content-type": request.media_type,
        "accept": request.accept,
        "x-request-id": request.request_id,
        "traceparent": request.traceparent,
    }
    return {name: value for name, value in headers.items() if value}


def _row(request: Request) -> dict[str, Any]:
    """The parameters of a request, as TorchServe's handlers get them."""
    row: dict[str, Any] = {}
    for name, values in request.query.items():
        row[name] = bytearray(values[-1].encode())
    row |= _parameters(request)
    return row


def _parameters(request: Request) -> Iterator[tuple[str, Any]]:
    media_type = request.media_type.partition(";")[0].strip().lower()
    if media_type == FORM:
        for parts in request.form.values():
            for part in parts:
                yield part.name, _decoded(part.media_type if part.filename else "", part.body)
    elif media_type == URLENCODED:
        try:
            text = request.body.decode()
            for name, value in parse_qsl(text, keep_blank_values=True):
                yield name, bytearray(value.encode())
        except ValueError as error:
            raise InvalidInput(f"the body is no form: {error}") from error
    else:
        yield "body", _decoded(media_type, request.body)


def _decoded(media_type: str, body: bytes) -> Any:
    """A parameter: JSON and texts decoded, unless they cannot be."""
    essence = media_type.partition(";")[0].strip().lower()
    try:
        if essence == "application/json":
            return json.loads(body)
        if essence.startswith("text"):
            return body.decode()
    except ValueError:  # as TorchServe: the handler gets the bytes
        return bytearray(body)
    return bytearray(body)
