"""A call whose JSON body names the model; what all calls for text have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from app.api.calls import Call
from app.api.codings import MAX_ON_LOOP_BYTES, Inflater
from app.api.endpoints import Endpoint
from app.api.memo import Written
from app.api.outcomes import JSON_HEADERS, dumped, failure_of
from app.api.text.fields import MAX_BODY_BYTES, at, field, flag, parsed
from app.codecs.base import Budget, check_count
from app.codecs.values import short
from app.engine.submission import Submission
from app.errors import InvalidInput, ItemFailed, ModelNotFound, PayloadTooLarge
from app.registry.loaded_models import LoadedModel
from app.types import Array, Item, Outcome
from models.codec_specs import TextCodecSpec, TextTask

MAX_NAME = 80  # characters of a model's name and version
DEFAULT = "default/not-specified"  # what infinity's clients send without a name


class TextCall(Call):
    """See `Call`. Only the body tells the model, and with it whether the key may call it.

    Attributes:
        tasks: which models it is for.
    """

    __slots__ = ("_document",)
    tasks: ClassVar[tuple[TextTask, ...]] = ()

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        """The Content-Type is ignored: these calls take only JSON."""
        self._document: dict[str, Any] | None = None

    def find_model(self) -> None:
        """The head does not name it: the server's time limit holds until the body has arrived."""
        self.limit_time(self.service.limits.timeout_s)

    def begin(self, body: bytes, request_id: bytes = b"") -> Submission:
        """See `Call`."""
        if self._coding is not None:
            body = self._inflated(body, self._coding)
            self._coding = None
        self._document = parsed(body)
        self.endpoint = named(self.endpoint, self._document.get("model"))
        super().find_model()
        return super().begin(body, request_id)

    def _inflated(self, body: bytes, coding: bytes) -> bytes:
        most = min(MAX_BODY_BYTES, self.service.limits.max_body_bytes)
        inflated = Inflater(coding, body, most).inflate_shortly()
        if inflated is None:
            raise PayloadTooLarge(
                f"a compressed body of this call may inflate to {MAX_ON_LOOP_BYTES} bytes; send "
                "it without Content-Encoding"
            )
        return inflated

    def check_model(self) -> None:
        """See `Call`."""
        check_task(self.model, self.tasks, self.endpoint.route)

    def memo_text(self, body: bytes) -> str | None:
        """See `Call`."""
        return self.endpoint.route

    def read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        """See `Call`.

        A call that waits does not keep its parsed body, which may be ten times as large: a thread
        parses it again.
        """
        document, self._document = self._document, None
        return self.read_document(parsed(body) if document is None else document, on_loop=on_loop)

    def read_document(self, document: dict[str, Any], *, on_loop: bool) -> list[Item]:
        """The items of a parsed body; see `read`.

        Raises:
            TooLongForLoop, TorchlaneError: see `read`.
        """
        raise NotImplementedError

    def check_count(self, values: Sequence[object]) -> None:
        """Reject more values than one request may have, before any is looked at.

        Raises:
            PayloadTooLarge: with both numbers.
        """
        check_count(len(values), self.service.limits.max_items)

    def items_of(
        self,
        document: Mapping[str, Any],
        values: Sequence[object],
        where: Callable[[int], str],
        *,
        on_loop: bool,
    ) -> list[Item]:
        """An item of each value.

        Args:
            document: says whether texts may be cut off.
            values: as the codec takes them.
            where: the place of a value in the body, for errors.
            on_loop: see `read`.

        Raises:
            TooLongForLoop, PayloadTooLarge: see `read`.
            InvalidInput: with the place of the value that is wrong.
        """
        truncates = _truncates(document)
        codec, budget = self.model.codec, Budget(on_loop=on_loop, is_left=self.is_left)
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
        """A list of texts, which must not be empty.

        Raises:
            PayloadTooLarge: there are too many.
            InvalidInput: it is something else.
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
            ItemFailed: if any item failed: these answers have no place for errors.
        """
        name = self.model.manifest.outputs[0].name
        arrays = []
        for outcome in outcomes:
            if isinstance(outcome, ItemFailed):
                raise failure_of(outcomes)
            arrays.append(outcome[name])
        return arrays

    def listed(self, what: str, key: str, found: Sequence[object]) -> Written:
        """An answer as OpenAI and infinity have it; `usage` counts the tokens that the model got.

        Where texts were cut off, `usage` also has the number of tokens that it did not get.
        """
        tokens = sum(note.tokens for note in self.notes if note is not None)
        cut = sum(note.cut for note in self.notes if note is not None)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        if cut:
            usage["cut_tokens"] = cut
        head = {"object": what, key: found, "model": str(self.model.id), "usage": usage}
        return JSON_HEADERS, dumped(head)


def named(endpoint: Endpoint, model: object) -> Endpoint:
    """The endpoint with the model that a body names: `NAME` or `NAME/VERSION`.

    Raises:
        InvalidInput: it is not a string.
        ModelNotFound: it is too long for a name.
    """
    if model is None or model == DEFAULT:
        return endpoint
    if not isinstance(model, str):
        raise InvalidInput("'model' must be a string", [{"param": "model"}])
    if not model or len(model) > MAX_NAME:
        raise ModelNotFound(f"there is no model {short(model)}; GET /v1/models lists what there is")
    name, version = split(model)
    return Endpoint(endpoint.route, endpoint.call, name, version, endpoint.many)


def split(model: str) -> tuple[str, str | None]:
    """The name and the version in `NAME` or `NAME/VERSION`."""
    name, _, version = model.rpartition("/")
    return (name, version) if name and version.isdigit() else (model, None)


def check_task(model: LoadedModel, tasks: Sequence[TextTask], route: str) -> None:
    """Reject a model whose task, or whose output, does not fit a call.

    Raises:
        InvalidInput: saying what the model is for.
    """
    codec, shape = model.manifest.codec, model.manifest.outputs[0].item_shape
    task = codec.task if isinstance(codec, TextCodecSpec) else None
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
    """Whether texts that are too long may be cut off, which TEI's requests can forbid."""
    field(
        document,
        "truncation_direction",
        "Right, since texts are cut off at the end",
        lambda given: given in ("Right", "right"),
    )
    return flag(document, "truncate", default=True)
