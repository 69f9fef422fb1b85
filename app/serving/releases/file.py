"""How far releases are, in a JSON file beside the models file.

All workers of a server read it. A change replaces the whole file while a lock on another file
beside it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from app.registry.releases import Stage
from models.system.contained import FileRejected, read_named
from models.system.durable import locked, replacing

STAGES = TypeAdapter(dict[str, Stage])
MAX_FILE_BYTES = 16 << 20
LOCK_S = 2.0  # others hold the lock for milliseconds
Stages = Mapping[str, Stage]


class ReleaseFileError(ValueError):
    """The file is damaged; the message names it, and says what to do."""


class ReleaseFile:
    """The stages of all releases, by model.

    Args:
        models_file: the models file, which has the releases.
    """

    def __init__(self, models_file: Path) -> None:
        self.path = models_file.with_name(f"{models_file.name}.releases.json")
        self._lock = models_file.with_name(f"{models_file.name}.releases.lock")
        self._read: tuple[bytes | None, Stages] = None, {}

    def read(self) -> Stages:
        """The stages; none without the file.

        Raises:
            ReleaseFileError: if it is damaged.
            OSError: if it cannot be read.
        """
        try:
            data = read_named(self.path, MAX_FILE_BYTES)
        except FileNotFoundError:
            return {}
        except FileRejected as error:
            raise ReleaseFileError(f"{self.path}: {error}") from None
        known, stages = self._read
        if data == known:
            return stages
        try:
            stages = STAGES.validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = "".join(f"{each}: " for each in first["loc"])
            raise ReleaseFileError(
                f"{self.path} is damaged: {where}{first['msg']}; delete it, and releases begin anew"
            ) from None
        self._read = data, stages
        return stages

    def change(self, how: Callable[[Stages], Stages]) -> Stages:
        """Replace the stages by what `how` makes of them, and return the new ones.

        Raises:
            ReleaseFileError: if the file is damaged; it then stays as it is.
            OSError: if it cannot be read or written.
            Exception: any exception of `how`.
        """
        with locked(self._lock, LOCK_S):
            before = self.read()
            after = how(before)
            if after != before:
                with replacing(self.path) as file:
                    file.write(STAGES.dump_json(dict(after), indent=2, by_alias=True) + b"\n")
            return after
