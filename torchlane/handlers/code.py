"""The code of a handler: imported, checked, and run on requests."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import typing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from importlib.util import find_spec
from itertools import repeat
from typing import Any

from torchlane.handlers.answers import Answer, answer_of, message_of
from torchlane.handlers.api import Handler, Models, Request
from torchlane.handlers.declarations import Tensor, read_tensors
from torchlane.handlers.launch import Settings
from torchlane.handlers.plain import json_of
from torchlane.handlers.streams import in_thread

MAX_SCHEMA_BYTES = 128 << 10


class HandlerInvalid(Exception):
    """The handler cannot be run."""


class Code:
    """A handler, as this process runs it.

    Args:
        settings: name its class.
        served: how it reaches the served models.
        threads: run `def predict`.

    Attributes:
        is_async: whether it runs on the event loop, where it can be cancelled.
        is_concurrent: whether many requests at once take no thread each.
        yields: whether it answers with a stream.
        schema: of the bodies that its annotation takes, as a JSON schema; None: it has none.
        inputs: that it declares; empty if it declares no tensors.
        outputs: the same of its answers.

    Raises:
        BaseException: of its code.
        HandlerInvalid: it is not what this process can run.
    """

    def __init__(self, settings: Settings, served: Models, threads: Executor) -> None:
        handler = _handler_of(settings)
        handler._served = served
        self._handler = handler
        self._threads = threads
        self._is_batch = settings.max_batch_size > 1
        name = "predict_batch" if self._is_batch else "predict"
        predict = getattr(handler, name, None)
        if not callable(predict):
            raise HandlerInvalid(
                f"{settings.entry} has no {name}; write `async def {name}(self, "
                f"{'requests' if self._is_batch else 'request'})`"
            )
        is_generator = inspect.isgeneratorfunction(predict)
        self.yields = is_generator or inspect.isasyncgenfunction(predict)
        if self.yields and self._is_batch:
            raise HandlerInvalid(
                f"{settings.entry}.{name} has a yield, which only `predict` can have; return a list"
            )
        self.is_async = self.yields or inspect.iscoroutinefunction(predict)
        self.is_concurrent = self.is_async and not is_generator and not self._is_batch
        self._predict = predict
        self._model = _model_of(predict, settings.entry, is_batch=self._is_batch)
        self.inputs, self.outputs = _tensors_of(handler, settings.entry)
        if self.inputs and self._model is not None:
            raise HandlerInvalid(
                f"{settings.entry} declares `inputs`, and {name} takes a pydantic model; use "
                "request.tensors instead of the annotation"
            )
        self.schema = None if self._model is None else _schema_of(self._model)

    async def set_up(self) -> None:
        """Run its `setup`."""
        if inspect.iscoroutinefunction(self._handler.setup):
            await self._handler.setup()
        else:  # as `def predict`, it may block and use `call_sync`
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._handler.setup)

    def argument(self, request: Request) -> Any:
        """What it takes for a request: the request, or the object of its annotation.

        Raises:
            BaseException: `InvalidInput`, or what a validator of the model raises.
        """
        return request if self._model is None else request.json(self._model)

    def values(self, argument: Any) -> AsyncGenerator[Any, None]:
        """What it yields for a request.

        Raises:
            BaseException: of its code.
        """
        values: Any = self._predict(argument)
        if inspect.isgenerator(values):
            return in_thread(values, self._threads)
        return typing.cast("AsyncGenerator[Any, None]", values)

    async def answers(
        self, arguments: Sequence[Any], requests: Sequence[Request]
    ) -> Sequence[Answer]:
        """The answers to requests that run together, in order.

        Args:
            arguments: see `argument`; one, or those of a batch.
            requests: that they belong to.

        Raises:
            BaseException: of its code.
        """

        def finish(value: Any) -> Sequence[Answer]:
            values = _checked(value, len(arguments)) if self._is_batch else [value]
            return [*map(answer_of, values, requests, repeat(self.outputs))]

        argument = [*arguments] if self._is_batch else arguments[0]
        if self.is_async:
            return finish(await self._predict(argument))
        loop, context = asyncio.get_running_loop(), copy_context()
        answers, error = await loop.run_in_executor(
            self._threads, context.run, _caught, lambda: finish(self._predict(argument))
        )
        if error is not None:
            raise error
        return answers


def _caught(work: Callable[[], Sequence[Answer]]) -> tuple[Sequence[Answer], BaseException | None]:
    """What work returns, or the exception that it raises: not every one can leave a thread."""
    try:
        return work(), None
    except BaseException as error:
        return (), error


def _checked(value: Any, count: int) -> Sequence[Any]:
    """The answers that `predict_batch` returned.

    Raises:
        TypeError: it is not a list with one for each request.
    """
    if not isinstance(value, list | tuple) or len(value) != count:
        size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
        raise TypeError(
            f"predict_batch returns a list with one answer for each request: got a "
            f"{type(value).__name__}{size} for {count} requests"
        )
    return value


def _handler_of(settings: Settings) -> Handler:
    """Import the module of a handler, and make its object."""
    sys.path.insert(0, settings.folder)
    module_name, _, name = settings.entry.partition(":")
    module = importlib.import_module(module_name)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Handler)):
        raise HandlerInvalid(f"{module_name} has no class {name} that is a torchlane.Handler")
    return kind()


def _tensors_of(handler: Handler, entry: str) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The inputs and outputs that a class declares; both are empty if it declares none."""
    try:
        inputs = read_tensors(handler.inputs, f"{entry}.inputs")
        outputs = read_tensors(handler.outputs, f"{entry}.outputs")
    except ValueError as error:
        raise HandlerInvalid(str(error)) from None
    if bool(inputs) != bool(outputs):
        raise HandlerInvalid(
            f"{entry} declares only one of `inputs` and `outputs`; declare both, or none"
        )
    if inputs and find_spec("numpy") is None:
        raise HandlerInvalid(
            f"{entry} declares `inputs`, for which {sys.executable} needs numpy; install it there"
        )
    return inputs, outputs


def _schema_of(model: Any) -> Mapping[str, Any] | None:
    """The JSON schema of a pydantic model; None if it has none, or a large one."""
    try:
        schema: Mapping[str, Any] = model.model_json_schema()
        if len(json_of(schema)) <= MAX_SCHEMA_BYTES:
            return schema
        problem = f"it has more than {MAX_SCHEMA_BYTES} bytes"
    except Exception as error:  # of a field that JSON cannot have
        problem = message_of(error)
    sys.stderr.write(f"torchlane: the schema of {model.__name__} is left out: {problem}\n")
    return None


def _model_of(predict: Callable[..., Any], entry: str, *, is_batch: bool) -> Any:
    """The pydantic model that annotates the requests; None if none does.

    Raises:
        HandlerInvalid: the annotation is unknown, or is nothing that requests can be.
    """
    what = f"{entry}.predict_batch" if is_batch else f"{entry}.predict"
    try:
        signature = inspect.signature(predict)
        signature.bind(None)
    except (TypeError, ValueError) as error:
        raise HandlerInvalid(f"{what} must take one argument besides self: {error}") from error
    parameter = next(iter(signature.parameters.values()))
    if parameter.annotation is inspect.Parameter.empty:
        return None
    try:
        annotation = _evaluated(predict, parameter.annotation)
    except Exception as error:  # of evaluating a text
        raise HandlerInvalid(
            f"{what}: the annotation {parameter.annotation!r} of {parameter.name} cannot be "
            f"resolved ({error}); import what it names, outside of `if TYPE_CHECKING`"
        ) from error
    if is_batch:
        annotation = _item_of(annotation)
    if annotation in (Any, Request):
        return None
    pydantic = sys.modules.get("pydantic")
    if (
        pydantic is not None
        and isinstance(annotation, type)
        and issubclass(annotation, pydantic.BaseModel)
    ):
        return annotation
    usual = "list[torchlane.Request]" if is_batch else "torchlane.Request"
    raise HandlerInvalid(
        f"{what}: {parameter.name} is annotated as {parameter.annotation!r}; use {usual} or "
        f"{'a list of a pydantic model' if is_batch else 'a pydantic model'}"
    )


def _item_of(annotation: Any) -> Any:
    """What the items of an annotated list are; None if it is no list."""
    if (typing.get_origin(annotation) or annotation) in (list, Sequence):
        item, *_ = (*typing.get_args(annotation), Any)
        return item
    return annotation if annotation is Any else None


def _evaluated(predict: Callable[..., Any], annotation: Any) -> Any:
    """An annotation of a function, which may be a text.

    The others are not evaluated: they may name what is imported for type checkers alone.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    names = vars(sys.modules[inspect.unwrap(predict).__module__])
    return typing.get_type_hints(holder, names)["it"]
