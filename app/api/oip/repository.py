"""Triton's model repository extension, for REST and gRPC.

It lists versions, reports whether they can answer, and loads them.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.errors import InvalidInput, ModelNotReady
from app.registry.loaded_models import LoadedHandler, LoadedModel, LoadedModels, ModelState
from app.serving.lifecycle import Lifecycle

MAX_BYTES = 64 << 10  # of a request over REST or gRPC, except for predictions
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
STATES = {  # Triton's names
    ModelState.LOADING: "LOADING",
    ModelState.READY: READY,
    ModelState.COLD: UNAVAILABLE,  # as Triton's, until it is loaded; but a request loads it
    ModelState.DRAINING: "UNLOADING",
    ModelState.UNLOADED: UNAVAILABLE,
    ModelState.FAILED: UNAVAILABLE,
}
REASONS = {
    ModelState.UNLOADED: "unloaded",
    ModelState.COLD: "on demand: the next request loads it",
}


class IndexEntry(TypedDict):
    """One version; `reason` explains its state, if an explanation is needed."""

    name: str
    version: str
    state: str
    reason: str


def is_ready(lifecycle: Lifecycle, name: str, version: int | None) -> bool:
    """Whether a version can answer; without one, the version for requests that name none.

    Raises:
        ModelNotFound: if there is no such model, or the version is not loaded.
    """
    try:
        model = lifecycle.loaded.tensors_of(name, version)
    except ModelNotReady:
        return False
    if isinstance(model, LoadedHandler):
        missing = lifecycle.loaded.missing(model.manifest)
        return not lifecycle.stopping and model.pool.works() and missing is None
    replicas = lifecycle.replica_states(model.id)
    return not lifecycle.stopping and any(each.state == "ready" for each in replicas)


def described(loaded: LoadedModels) -> tuple[LoadedModel | LoadedHandler, ...]:
    """Every loaded version of a model, or of a handler that declares its tensors."""
    handlers = (each for each in loaded.handlers() if each.tensors is not None)
    return (*loaded.models(), *handlers)


def versions(
    loaded: LoadedModels, name: str, version: int | None = None
) -> tuple[LoadedModel | LoadedHandler, ...]:
    """This version of a model or handler, or every loaded version if none is named.

    Raises:
        ModelNotFound, ModelNotReady: see `LoadedModels.resolve`.
    """
    model = loaded.tensors_of(name, version)
    if version is not None:
        return (model,)
    return tuple(each for each in described(loaded) if each.id.name == name)


def index(loaded: LoadedModels, *, only_ready: bool) -> list[IndexEntry]:
    """Every version that the server knows, or only the served versions."""
    entries: list[IndexEntry] = [
        {
            "name": name,
            "version": str(status.id.version),
            "state": STATES[status.state],
            "reason": status.problem or REASONS.get(status.state, ""),
        }
        for name in sorted(loaded.names)
        for status in reversed(loaded.statuses(name))
    ]
    return [entry for entry in entries if entry["state"] == READY or not only_ready]


async def load(lifecycle: Lifecycle, name: str, parameters: Mapping[str, object]) -> None:
    """Serve the versions that the version policy selects, including unloaded versions.

    Raises:
        InvalidInput: if a parameter would replace the configuration or a file; or if a version
            could not be loaded, and versions served before still serve.
        ModelNotFound: if the repository has no such model.
    """
    for parameter in parameters:
        if parameter == "config" or parameter.startswith("file:"):
            raise InvalidInput(
                f"the parameter {parameter!r} is not supported: a model is served as it was "
                "exported and verified; export another version, or change settings in the "
                "server's models file"
            )
    changes = await lifecycle.load(name)
    problems = [f"{each.id}: {each.problem}" for each in changes.failed if each.id.name == name]
    if problems:
        raise InvalidInput(f"failed to load {name!r}: {'; '.join(problems)}")
