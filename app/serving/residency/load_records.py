"""What loads of models on demand took, kept for the next start of any server on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.threads import in_thread
from models.system.contained import FileRejected, read_named
from models.system.durable import locked, replacing

LOG = structlog.get_logger(__name__)
MAX_FILE_BYTES = 16 << 20
MOST = 10_000  # records, those that were written last
WRITE_S = 10.0  # between two writes
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LoadRecord(BaseModel):
    """What a model took.

    Attributes:
        nbytes: memory, at its last load.
        first_s: seconds of its last load that was the first one of a process.
        again_s: mean seconds of its later loads; 0 if there was none.
    """

    model_config = ConfigDict(frozen=True)

    nbytes: int = Field(ge=0)
    first_s: Seconds
    again_s: Seconds


RECORDS = TypeAdapter(dict[str, LoadRecord])


class LoadRecords:
    """The records by identity: the digest of a manifest, and the variant.

    They are estimates: without them, or if they cannot be read or written, the first loads of a
    server have none.

    Args:
        folder: has the file; None: they are forgotten with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._records: dict[str, LoadRecord] | None = None  # not read yet
        self._changed: dict[str, LoadRecord] = {}  # since the last write
        self._write_at = 0.0
        self._problem: str | None = None  # as logged

    def get(self, identity: str) -> LoadRecord | None:
        """The record of a model, if there is one."""
        return self._all().get(identity)

    def put(self, identity: str, record: LoadRecord) -> None:
        """Keep a record, which `save` writes."""
        self._changed[identity] = self._all()[identity] = record

    async def save(self, *, at_once: bool = False) -> None:
        """Write what has changed, but not often."""
        folder = self._folder
        if folder is None or not self._changed:
            return
        if not at_once and time.monotonic() < self._write_at:
            return
        changed, self._changed = self._changed, {}
        self._write_at = time.monotonic() + WRITE_S
        if not await in_thread(lambda: self._write(folder, changed)):
            self._changed = changed | self._changed  # later

    def _all(self) -> dict[str, LoadRecord]:
        if self._records is None:
            self._records = self._read()
        return self._records

    def _read(self) -> dict[str, LoadRecord]:
        if self._folder is None:
            return {}
        try:
            return RECORDS.validate_json(read_named(self._folder / "loads.json", MAX_FILE_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, FileRejected, ValidationError) as error:
            self._tell(error)
            return {}

    def _write(self, folder: Path, changed: dict[str, LoadRecord]) -> bool:
        """Add records to those of other processes; whether none of these is writing now."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "loads.lock"):
                kept = {k: v for k, v in self._read().items() if k not in changed}
                latest = [*kept.items(), *changed.items()][-MOST:]
                with replacing(folder / "loads.json") as file:
                    file.write(RECORDS.dump_json(dict(latest)))
        except BlockingIOError:
            return False
        except OSError as error:
            self._tell(error)
        return True

    def _tell(self, error: Exception) -> None:
        problem = error.strerror if isinstance(error, OSError) else "loads.json is damaged"
        if problem != self._problem:
            LOG.warning("load_records_unusable", folder=str(self._folder), problem=problem)
        self._problem = problem
