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
from typing import Any

from torchlane.handlers.answers import ABANDONED, Answer, answer_of, failure_of
from torchlane.handlers.api import Handler, Models, Request
from torchlane.handlers.calls import CURRENT
from torchlane.handlers.launch import Settings
from torchlane.handlers.streams import in_thread

Requests = Sequence[tuple[int, Request]]  # with their numbers


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
        yields: whether it answers with a stream.
        schema: of the bodies that its annotation takes, as a JSON schema; None: it has none.

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
        self._predict = predict
        self._model = _model_of(predict, settings.entry, is_batch=self._is_batch)
        self.schema: Mapping[str, Any] | None = None
        if self._model is not None:
            self.schema = self._model.model_json_schema()

    async def set_up(self) -> None:
        """Run its `setup`."""
        if inspect.iscoroutinefunction(self._handler.setup):
            await self._handler.setup()
        else:  # as `def predict`, it may block and use `call_sync`
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._handler.setup)

    def values(self, request: Request) -> AsyncGenerator[Any, None]:
        """What it yields for a request.

        Raises:
            BaseException: of its code.
        """
        values: Any = self._predict(self._argument(request))
        if inspect.isgenerator(values):
            return in_thread(values, self._threads)
        return typing.cast("AsyncGenerator[Any, None]", values)

    async def answers(self, requests: Requests, cancelled: set[int]) -> list[Answer]:
        """The answers to requests that run together, in order.

        If a batch fails as a whole, each of its requests is run alone.

        Args:
            requests: one, or those of a batch.
            cancelled: numbers of requests that are not run again; may grow.
        """
        answers: dict[int, Answer] = {}
        arguments = []
        for number, request in requests:
            try:
                arguments.append((number, request, self._argument(request)))
            except BaseException as error:  # of a model's validators, too
                answers[number] = failure_of(error)
        if arguments:
            answers |= await self._run(arguments, cancelled)
        return [answers[number] for number, _ in requests]

    async def _run(
        self, arguments: Sequence[tuple[int, Request, Any]], cancelled: set[int]
    ) -> dict[int, Answer]:
        CURRENT.set(arguments[0][0])
        try:
            return await self._run_together(arguments)
        except BaseException as error:  # of users' code: ends their requests alone
            numbers = [number for number, _, _ in arguments]
            if len(numbers) == 1 or cancelled.issuperset(numbers):
                return dict.fromkeys(numbers, failure_of(error))
        answers: dict[int, Answer] = {}
        for each in arguments:
            if each[0] in cancelled:
                answers[each[0]] = ABANDONED
            else:
                answers |= await self._run([each], cancelled)
        return answers

    async def _run_together(
        self, arguments: Sequence[tuple[int, Request, Any]]
    ) -> dict[int, Answer]:
        def finish(returned: Any) -> dict[int, Answer]:
            values = _checked(returned, len(arguments)) if self._is_batch else [returned]
            pairs = zip(arguments, values, strict=True)
            return {number: answer_of(value, request) for (number, request, _), value in pairs}

        values = [value for _, _, value in arguments]
        argument = values if self._is_batch else values[0]
        if self.is_async:
            return finish(await self._predict(argument))
        loop, context = asyncio.get_running_loop(), copy_context()
        answers, error = await loop.run_in_executor(
            self._threads, context.run, _caught, lambda: finish(self._predict(argument))
        )
        if error is not None:
            raise error
        return answers

    def _argument(self, request: Request) -> Any:
        return request if self._model is None else request.json(self._model)


def _caught(work: Callable[[], dict[int, Answer]]) -> tuple[dict[int, Answer], Exception | None]:
    """What work returns, or the exception that it raises; a future takes no StopIteration."""
    try:
        return work(), None
    except StopIteration as error:
        return {}, RuntimeError(f"the code raised StopIteration: {error}")


def _checked(returned: Any, count: int) -> Sequence[Any]:
    """The answers that `predict_batch` returned.

    Raises:
        TypeError: it is not a list with one for each request.
    """
    if not isinstance(returned, list | tuple) or len(returned) != count:
        size = f" of {len(returned)}" if isinstance(returned, list | tuple) else ""
        raise TypeError(
            f"predict_batch returns a list with one answer for each request: got a "
            f"{type(returned).__name__}{size} for {count} requests"
        )
    return returned


def _handler_of(settings: Settings) -> Handler:
    """Import the module of a handler, and make its object."""
    sys.path.insert(0, settings.folder)
    module_name, _, name = settings.entry.partition(":")
    module = importlib.import_module(module_name)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Handler)):
        raise HandlerInvalid(f"{module_name} has no class {name} that is a torchlane.Handler")
    return kind()


def _model_of(predict: Callable[..., Any], entry: str, *, is_batch: bool) -> Any:
    """The pydantic model that annotates the requests; None if none does.

    Raises:
        HandlerInvalid: the annotation is unknown, or is nothing that requests can be.
    """
    parameters = [*inspect.signature(predict).parameters.values()]
    if len(parameters) != 1:
        names = ", ".join(each.name for each in parameters)
        raise HandlerInvalid(
            f"{entry}.{predict.__name__} must take one argument besides self, got ({names})"
        )
    name = parameters[0].name
    if parameters[0].annotation is inspect.Parameter.empty:
        return None
    try:
        annotation = typing.get_type_hints(predict)[name]
    except Exception as error:  # of evaluating a text
        raise HandlerInvalid(
            f"{entry}.{predict.__name__}: the annotation of {name} cannot be read: {error}"
        ) from error
    if is_batch:
        arguments = typing.get_args(annotation)
        annotation = arguments[0] if len(arguments) == 1 else Any
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
        f"{entry}.{predict.__name__}: {name} is annotated as {annotation!r}; use {usual} or a "
        f"pydantic model{' in a list' if is_batch else ''}"
    )
