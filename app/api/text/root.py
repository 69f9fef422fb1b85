"""POST /: embeddings or labels, by the model, as Hugging Face's servers of one model answer.

text-embeddings-inference's requests have its fields beside `inputs`. Inference Endpoints and the
hub's client send those of a pipeline, in `parameters`, and read a list for each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from app.api.endpoints import Endpoint
from app.api.text.body import loaded_for, task_of
from app.api.text.classify import INPUTS, items_of_sequences, items_to_label, labelled
from app.api.text.embeddings import EmbedCall
from app.api.text.fields import field
from app.api.text.scores import wants_raw
from app.codecs.values import short
from app.errors import InvalidInput
from app.registry.loaded_models import LoadedModel
from app.types import Item, Outcome
from models.choices import TextTask

PARAMETERS, TOP_K, FUNCTION = "parameters", "top_k", "function_to_apply"
# Fields of a call for embeddings alone, and those that the hub's client may put into `parameters`.
ONLY_EMBED = ("normalize", "prompt_name", "dimensions")
EMBED_FIELDS = (*ONLY_EMBED, "truncate", "truncation_direction")


class RootCall(EmbedCall):
    """See `Call`."""

    __slots__ = ("_many", "_raw", "_top")
    tasks: ClassVar[tuple[TextTask, ...]] = ("embed", "classify")

    def tasks_of(self, document: Mapping[str, Any]) -> Sequence[TextTask]:
        """See `TextCall`. Other `parameters` are those of a pipeline of classifiers."""
        parameters = document.get(PARAMETERS)
        is_embed = any(document.get(name) is not None for name in ONLY_EMBED) or (
            isinstance(parameters, dict) and not parameters.keys().isdisjoint(EMBED_FIELDS)
        )
        if is_embed and loaded_for(self.service.loaded, "embed"):
            return ("embed",)
        if PARAMETERS in document and loaded_for(self.service.loaded, "classify"):
            return ("classify",)
        return self.tasks

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        parameters = field(document, PARAMETERS, "an object", lambda given: isinstance(given, dict))
        if task_of(self.model) == "embed":
            check_parameters(parameters or {}, document)
            return super().read_document({**document, **(parameters or {})})
        if parameters is None:
            self._top: int | None = None
            self._raw = wants_raw(document, self.model)
            self._many, items = items_of_sequences(self, document)
            return items
        self._many = True
        self._top, self._raw = read_pipeline(parameters, self.model)
        if isinstance(document.get(INPUTS), str):
            document = {**document, INPUTS: [document[INPUTS]]}
        return items_to_label(self, document, INPUTS, self.texts_of(document, INPUTS))

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        if task_of(self.model) == "embed":
            return super().document_of(outcomes, collect)
        labels = labelled(self.model, self.arrays_of(outcomes), raw=self._raw, top=self._top)
        return collect(labels) if self._many else next(labels)


def check_names(parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check the names of parameters.

    Raises:
        InvalidInput: for an unknown one, with those that the call has.
    """
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"unknown parameter {short(name)}; this call has {', '.join(known)}",
                [{"param": PARAMETERS}],
            )


def check_parameters(parameters: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Check the parameters of a call for embeddings, which are fields of the body too.

    Raises:
        InvalidInput: if one is unknown, or the body has the field too.
    """
    check_names(parameters, EMBED_FIELDS)
    for name in parameters:
        if name in document:
            raise InvalidInput(f"{name!r} is in the body and in its 'parameters': give it once")


def read_pipeline(parameters: Mapping[str, Any], model: LoadedModel) -> tuple[int | None, bool]:
    """How many labels a text-classification pipeline shall return, and whether raw scores.

    Raises:
        InvalidInput: if it has another parameter, or asks for scores that the model lacks.
    """
    check_names(parameters, (TOP_K, FUNCTION))
    top: int | None = field(
        parameters,
        TOP_K,
        "a whole number of at least 1",
        lambda given: type(given) is int and given >= 1,
    )
    scores = model.manifest.codec.scores
    functions = ("softmax",) if scores == "softmax" else ("none", scores)
    function = field(
        parameters,
        FUNCTION,
        f"{' or '.join(functions)}, because the model was exported so",
        lambda given: given in functions,
    )
    return top, function == "none"


ENDPOINTS = (Endpoint("/", RootCall, many=True),)
