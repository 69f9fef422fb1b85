"""The base of all text calls, whose JSON body names the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from app.api.calls import Call
from app.api.codings import MAX_ON_LOOP_BYTES, Inflater
from app.api.endpoints import Endpoint
from app.api.outcomes import failure_of
from app.api.text.fields import MAX_BODY_BYTES, at, field, flag, parsed
from app.codecs.base import check_count
from app.codecs.values import short
from app.engine.submission import Submission
from app.errors import InvalidInput, ItemFailed, ModelNotFound, PayloadTooLarge
from app.registry.loaded_models import LoadedModel, LoadedModels, list_names
from app.types import Array, Item, Outcome
from models.choices import TextTask
from models.codec_specs import TextCodecSpec

MAX_NAME = 80  # characters of a model's name and version
DEFAULT = "default/not-specified"  # infinity's clients send this if no model is named


class TextCall(Call):
    """See `Call`. Only the body names the model, and thus decides whether the key may call it.

    Attributes:
        tasks: the tasks of the models that it can call.
    """

    __slots__ = ("_document",)
    tasks: ClassVar[tuple[TextTask, ...]] = ()

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        """Ignore the Content-Type: these calls accept only JSON."""
        self._document: dict[str, Any] | None = None

    def find_model(self) -> None:
        """Use the server's timeout until the body arrives, because the head names no model."""
        self.limit_time(self.service.limits.timeout_s)

    def begin(self, body: bytes, request_id: bytes = b"") -> Submission:
        if self._coding is not None:
            body = self._inflated(body, self._coding)
            self._coding = None
        self._document = parsed(body)
        self.endpoint = named(self.endpoint, self._document.get("model"))
        if self.endpoint.name is None:
            name = unnamed(self.service.loaded, self.tasks_of(self._document))
            self.endpoint = replace(self.endpoint, name=name)
        super().find_model()
        return super().begin(body, request_id)

    def tasks_of(self, document: Mapping[str, Any]) -> Sequence[TextTask]:
        """The tasks of a body that names no model, as `unnamed` takes them."""
        return self.tasks

    def _inflated(self, body: bytes, coding: bytes) -> bytes:
        most = min(MAX_BODY_BYTES, self.service.limits.max_body_bytes)
        inflated = Inflater(coding, body, most).inflate_shortly()
        if inflated is None:
            raise PayloadTooLarge(
                f"a compressed body of this call may inflate to at most {MAX_ON_LOOP_BYTES} bytes; "
                "send it without Content-Encoding"
            )
        return inflated

    def check_model(self) -> None:
        super().check_model()
        check_task(self.model, self.tasks, self.endpoint.route)

    def memo_text(self, body: bytes) -> str | None:
        return self.endpoint.route

    def read(self, body: bytes) -> list[Item]:
        """See `Call`.

        A waiting call does not keep its parsed body, which may be ten times as large; a thread
        parses the body again.
        """
        document, self._document = self._document, None
        return self.read_document(parsed(body) if document is None else document)

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        """The items of a parsed body; see `read`.

        Raises:
            TooLongForLoop, TorchlaneError: see `read`.
        """
        raise NotImplementedError

    def check_count(self, values: Sequence[object]) -> None:
        """Reject more values than one request may have, before any is examined.

        Raises:
            PayloadTooLarge: with both numbers.
        """
        check_count(len(values), self.service.limits.max_items)

    def items_of(
        self,
        document: Mapping[str, Any],
        values: Sequence[object],
        where: Callable[[int], str],
    ) -> list[Item]:
        """An item for each value.

        Args:
            document: says whether texts may be cut off.
            values: values that the codec accepts.
            where: returns the place of a value in the body, for errors.

        Raises:
            TooLongForLoop, PayloadTooLarge: see `read`.
            InvalidInput: with the place of the invalid value.
        """
        truncates = _truncates(document)
        codec, budget = self.model.codec, self.budget()
        items = []
        for index, value in enumerate(values):
            try:
                item = codec.decode(value, budget)
                if not truncates and item.note is not None and item.note.cut:
                    kept = item.note.tokens
                    got = item.note.cut + kept
                    raise InvalidInput(
                        f"{got} tokens, the limit of the model is {kept}",
                        [{"got": got, "limit": kept}],
                    )
            except InvalidInput as error:
                raise at(where(index), error) from error
            items.append(item)
        return items

    def texts_of(self, document: Mapping[str, Any], name: str) -> list[str]:
        """A list of at least one text.

        Raises:
            PayloadTooLarge: if there are too many texts.
            InvalidInput: if the field is anything else.
        """
        given = document.get(name)
        if isinstance(given, list) and given:
            self.check_count(given)
            if all(type(each) is str for each in given):
                return given
        raise InvalidInput(f"{name!r} must be a list of at least one string", [{"param": name}])

    def arrays_of(self, outcomes: Sequence[Outcome]) -> list[Array]:
        """The first output of each item.

        Raises:
            ItemFailed: if any item failed, because these answers have no place for errors.
        """
        name = self.model.manifest.outputs[0].name
        arrays = []
        for outcome in outcomes:
            if isinstance(outcome, ItemFailed):
                raise failure_of(outcomes)
            arrays.append(outcome[name])
        return arrays

    def listed(self, what: str, key: str, found: object) -> dict[str, object]:
        """An answer's document in OpenAI's and infinity's form.

        `usage` counts the tokens that the model used. If texts were cut off, it also has the number
        of tokens that were not used.
        """
        tokens = sum(note.tokens for note in self.notes if note is not None)
        cut = sum(note.cut for note in self.notes if note is not None)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        if cut:
            usage["cut_tokens"] = cut
        return {"object": what, key: found, "model": str(self.model.id), "usage": usage}


def named(endpoint: Endpoint, model: object) -> Endpoint:
    """The endpoint with the model that a body names: `NAME` or `NAME/VERSION`.

    Raises:
        InvalidInput: if it is not a string.
        ModelNotFound: if it is empty or too long for a name.
    """
    if model is None or model == DEFAULT:
        return endpoint
    if not isinstance(model, str):
        raise InvalidInput("'model' must be a string", [{"param": "model"}])
    if not model or len(model) > MAX_NAME:
        raise ModelNotFound(f"there is no model {short(model)}; GET /v1/models lists all models")
    name, version = split(model)
    return Endpoint(endpoint.route, endpoint.call, name, version, endpoint.many)


def split(model: str) -> tuple[str, str | None]:
    """The name and the version in `NAME` or `NAME/VERSION`."""
    name, _, version = model.rpartition("/")
    return (name, version) if name and version.isdigit() else (model, None)


def unnamed(loaded: LoadedModels, tasks: Sequence[TextTask]) -> str | None:
    """The name of the model that a text call without a model uses; None: none suits.

    The default model if it has one of the tasks, else the only model with the first task that any
    model has.

    Raises:
        ModelNotFound: if several models have that task.
    """
    name = loaded.default_model
    default = None if name is None else loaded.get(name)
    is_handler = name is not None and loaded.handler(name) is not None
    if name is not None and not is_handler and (default is None or task_of(default) in tasks):
        return name  # one that is not loaded may have the task once it is
    for task in tasks:
        names = loaded_for(loaded, task)
        if len(names) > 1:
            raise ModelNotFound(
                f"several models are made to {task}: name one in 'model', or set "
                f"TORCHLANE_DEFAULT_MODEL; there are: {list_names(names)}"
            )
        if names:
            return names[0]
    return None


def loaded_for(loaded: LoadedModels, task: TextTask) -> list[str]:
    """The names of the loaded models that have a task."""
    models = [(name, loaded.get(name)) for name in loaded.names]
    return [name for name, model in models if model is not None and task_of(model) == task]


def task_of(model: LoadedModel) -> TextTask | None:
    """The task of a text model; None for another model."""
    codec = model.manifest.codec
    return codec.task if isinstance(codec, TextCodecSpec) else None


def check_task(model: LoadedModel, tasks: Sequence[TextTask], route: str) -> None:
    """Reject a model whose task or output does not fit a call.

    Raises:
        InvalidInput: with what the model is for.
    """
    codec, shape = model.manifest.codec, model.manifest.outputs[0].item_shape
    task = task_of(model)
    if task not in tasks:
        made = f"for {codec.kind} inputs" if task is None else f"to {task}"
    elif task == "rerank" and math.prod(shape) != 1:
        made = f"to answer {shape} scores of a pair"
    elif task != "rerank" and (len(shape) != 1 or shape[0] < 1):
        made = f"to answer {shape} numbers, not a vector of one size"
    else:
        return
    raise InvalidInput(
        f"model {model.id.name!r} is made {made}; {route} needs a text model made to "
        f"{' or '.join(tasks)}",
        [{"param": "model"}],
    )


def _truncates(document: Mapping[str, Any]) -> bool:
    """Whether texts that are too long may be cut off; TEI's requests can forbid it."""
    field(
        document,
        "truncation_direction",
        "Right, since texts are cut off at the end",
        lambda given: given in ("Right", "right"),
    )
    return flag(document, "truncate", default=True)
