"""An administrator's requests in addition to the version policy, shared by a server's processes.

They last until the server ends; use TORCHLANE_VERSIONS for lasting changes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.shared_file import SharedFile
from app.types import ModelId

ALL = 0  # as a version: every version of the model


@dataclass(frozen=True, slots=True)
class Override:
    """The state of all requests.

    Attributes:
        asked: number of requests so far.
        loaded: versions to serve in addition to the policy's.
        unloaded: versions not to serve, whatever the policy says; version ALL: the whole model.
        default: the model for requests without a name, if no setting names one. Nobody requests
            it, but all processes of a server must agree on it.
    """

    asked: int = 0
    loaded: frozenset[ModelId] = frozenset()
    unloaded: frozenset[ModelId] = frozenset()
    default: str | None = None

    def forbids(self, model: ModelId) -> bool:
        """Whether the version was unloaded."""
        return model in self.unloaded or ModelId(model.name, ALL) in self.unloaded


class Overrides:
    """Stores the requests made to one server.

    Args:
        file: shared by the server's processes; None if there is only one process.
    """

    def __init__(self, file: SharedFile | None) -> None:
        self._file = file
        self._override = Override()

    @property
    def are_shared(self) -> bool:
        """Whether other processes may add requests."""
        return self._file is not None

    def now(self) -> Override:
        """The current requests."""
        if self._file is not None and (data := self._file.content()):
            self._override = _read(data)
        return self._override

    def reload(self) -> Override:
        """Request a check of the repository that tries failed versions again."""
        with self._changing() as override:
            return self._change(override)

    def load(self, model: ModelId) -> Override:
        """Request a version; with version ALL, the policy's versions."""
        with self._changing() as override:
            unloaded = override.unloaded - {model, ModelId(model.name, ALL)}
            if model.version == ALL:
                unloaded = frozenset(each for each in unloaded if each.name != model.name)
                loaded = frozenset(each for each in override.loaded if each.name != model.name)
                return self._change(replace(override, unloaded=unloaded, loaded=loaded))
            return self._change(
                replace(override, unloaded=unloaded, loaded=override.loaded | {model})
            )

    def unload(self, model: ModelId) -> Override:
        """Request to stop serving a version; with version ALL, the whole model."""
        with self._changing() as override:
            loaded = override.loaded - {model}
            if model.version == ALL:
                loaded = frozenset(each for each in loaded if each.name != model.name)
            return self._change(
                replace(override, unloaded=override.unloaded | {model}, loaded=loaded)
            )

    def keep_default(self, name: str | None) -> None:
        """Make this model the default in every process."""
        with self._changing() as override:
            self._write(replace(override, default=name))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Override]:
        """The current requests, locked against changes by other processes if they are shared."""
        if self._file is None:
            yield self._override
            return
        with self._file.locked(waits=True):
            yield self.now()

    def _change(self, override: Override) -> Override:
        self._write(replace(override, asked=override.asked + 1))
        return self._override

    def _write(self, override: Override) -> None:
        self._override = override
        if self._file is not None:
            self._file.put(_written(self._override))


def _written(override: Override) -> bytes:
    made = {
        "asked": override.asked,
        "loaded": _versions(override.loaded),
        "unloaded": _versions(override.unloaded),
        "default": override.default,
    }
    return json.dumps(made).encode()


def _versions(models: Iterable[ModelId]) -> list[tuple[str, int]]:
    return sorted((model.name, model.version) for model in models)


def _read(data: bytes) -> Override:
    given = json.loads(data)
    loaded, unloaded = (
        frozenset(ModelId(str(name), int(version)) for name, version in given[which])
        for which in ("loaded", "unloaded")
    )
    return Override(int(given["asked"]), loaded, unloaded, given["default"])
