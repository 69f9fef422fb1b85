"""The models file: settings of single models, read again after each change.

    [models.digits]
    max_batch_size = 32
    timeout_ms = 200

docs/models-file.md lists all settings; a test checks that it matches.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from app.registry.model_settings import MODEL_NAME, ModelSettings
from app.registry.releases import Release, Shadow, StopIf
from app.registry.weights import BODY, HEADER, KEY
from models.choices import Precision, did_you_mean
from models.system.byte_order import strip_byte_order_mark
from models.system.contained import FileRejected, read_named
from models.versions import RULE, VERSION

LOG = structlog.get_logger(__name__)
MAX_FILE_BYTES = 1 << 20  # 10,000 models, each with a dozen settings
MAX_MISTAKES = 20
SHOWN = 500  # characters of a mistake, which may quote a large value
SETTLING_S, SETTLING_LOOKS = 0.1, 20  # a file that is equal in two checks in a row is complete
SETTING = "TORCHLANE_MODELS_FILE"
STICKY = re.compile(rf"{BODY}|{KEY}|{HEADER}[!#$%&'*+.^_`|~0-9A-Za-z-]+")
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class ModelsFileError(ValueError):
    """A wrong models file; the message names the file, and the key of each mistake."""


class Entry(BaseModel):
    """The file's settings for one model; missing ones come from the server's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_batch_size: int | None = Field(None, ge=1, le=4096)
    batch_wait_ms: float | None = Field(None, ge=0, le=10_000, allow_inf_nan=False)
    queue_limit_items: int | None = Field(None, ge=1)
    queue_limit_bytes: ByteSize | None = Field(None, gt=0)
    timeout_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    devices: str | None = None
    replicas: int | None = Field(None, ge=1, le=1024)
    variant: str | None = Field(None, min_length=1)
    precision: Precision | None = None
    cache: bool | None = None
    allowed_keys: list[str] | None = Field(None, min_length=1)
    required: bool = True
    python: str | None = Field(None, min_length=1)
    processes: int | None = Field(None, ge=1, le=64)
    user: str | None = Field(None, min_length=1)
    load: Literal["always", "on-demand"] | None = None
    idle_s: float | None = Field(None, gt=0, le=31_536_000, allow_inf_nan=False)
    weights: dict[str, Weight] | None = None
    release: Release | None = None
    sticky: str | None = None
    shadow: Shadow | None = None

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        for version in weights or ():
            if not VERSION.fullmatch(version):
                raise PydanticCustomError("weights", f"{version!r} is not a version; {RULE}")
        if weights is not None and not any(weights.values()):
            raise PydanticCustomError("weights", "at least one weight must be above 0")
        return weights

    @field_validator("sticky")
    @classmethod
    def _check_sticky(cls, sticky: str | None) -> str | None:
        if sticky is not None and not STICKY.fullmatch(sticky):
            raise PydanticCustomError("sticky", 'use "body", "key" or "header:NAME"')
        return sticky

    def over(self, defaults: ModelSettings, share_of: Callable[[int], int]) -> ModelSettings:
        """The model's settings: these override the defaults, with a process's share of bytes."""
        nbytes = self.queue_limit_bytes
        found: dict[str, Any] = {
            "max_batch_size": self.max_batch_size,
            "plan_may_lower": None if self.max_batch_size is None else False,
            "batch_wait_s": _seconds(self.batch_wait_ms),
            "queue_limit_items": self.queue_limit_items,
            "queue_limit_bytes": None if nbytes is None else share_of(nbytes),
            "timeout_s": _seconds(self.timeout_ms),
            "devices": None if self.devices is None else tuple(_listed(self.devices)),
            "replicas": self.replicas,
            "cache": None if self.cache is None else self.cache and defaults.cache,
            "python": self.python,
            "processes": self.processes,
            "user": self.user,
            "weights": self.weights and {int(each): n for each, n in self.weights.items()},
            "release": self.release,
            "sticky": self.sticky,
            "shadow": self.shadow,
            "on_demand": None if self.load is None else self.load == "on-demand",
            "idle_s": self.idle_s,
            "set_by_file": frozenset(self.model_fields_set),
            "allowed_keys": None if self.allowed_keys is None else frozenset(self.allowed_keys),
        }
        settings = replace(defaults, **{k: v for k, v in found.items() if v is not None})
        if self.variant is not None or self.precision is not None:  # one resets the other
            settings = replace(
                settings, variant=self.variant, precision=self.precision, pinned_by_file=True
            )
        return settings


TABLES: Mapping[str, type[BaseModel]] = {  # within that of a model
    "release": Release,
    "release.stop_if": StopIf,
    "shadow": Shadow,
}


class ModelsFile:
    """Settings of every model.

    Args:
        file: if None, all models have the server's settings.
        defaults: the server's settings.
        devices: names of the server's devices.
        asks_for_keys: whether API keys exist that `allowed_keys` could name.
        share_of: returns this process's share of a limit for all processes.

    Attributes:
        problem: what is wrong with the file now; its last good content applies.
        required: models that the file requires for readiness.

    Raises:
        ModelsFileError: if the file is wrong now.
    """

    def __init__(
        self,
        file: Path | None,
        defaults: ModelSettings,
        devices: Iterable[str],
        *,
        asks_for_keys: bool,
        share_of: Callable[[int], int] = int,
    ) -> None:
        self._file = file
        self._share_of = share_of
        self._defaults = defaults
        self._devices = sorted(set(devices))
        self._asks_for_keys = asks_for_keys
        self._settings: dict[str, ModelSettings] = {}
        self._seen: bytes | None = None
        self.problem: str | None = None
        self.required: frozenset[str] = frozenset()
        if file is not None:
            self._seen = _read(file)
            self._take(file, self._seen)

    def of(self, name: str) -> ModelSettings:
        """The settings of a model, which may not exist."""
        return self._settings.get(name, self._defaults)

    def releases(self) -> dict[str, Release]:
        settings = self._settings.items()
        return {name: each.release for name, each in settings if each.release is not None}

    def look(self) -> None:
        """Apply changes to the file; if it is wrong, its last good content still applies."""
        if self._file is None:
            return
        text: bytes | None = None
        try:
            text = _read(self._file)
            if text == self._seen:
                return
            text = _settled(self._file, text)
            if not text.strip() and self._settings:
                raise ModelsFileError(
                    f"{SETTING}={self._file}: empty file; write a comment to say that no model has "
                    "settings of its own"
                )
            self._take(self._file, text)
        except ModelsFileError as error:
            if str(error) != self.problem:  # reported once, however often it is checked
                LOG.error("models_file_not_taken", problem=str(error), kept=sorted(self._settings))
            self.problem = str(error)
        else:
            self.problem = None
            LOG.info("models_file_taken", file=str(self._file), models=sorted(self._settings))
        self._seen = text

    def _take(self, file: Path, text: bytes) -> None:
        try:
            reader = _Reader(file, text, self._devices, asks_for_keys=self._asks_for_keys)
            entries = reader.entries()
        except RecursionError:
            raise ModelsFileError(f"{SETTING}={file}: values are nested too deeply") from None
        self._settings = {
            name: entry.over(self._defaults, self._share_of) for name, entry in entries.items()
        }
        self.required = frozenset(name for name, entry in entries.items() if entry.required)


class _Reader:
    """Reads the file once, and collects the mistakes in it.

    Args:
        file: its path, for messages.
        text: its content.
        devices: see `ModelsFile`.
        asks_for_keys: see `ModelsFile`.
    """

    def __init__(
        self, file: Path, text: bytes, devices: Sequence[str], *, asks_for_keys: bool
    ) -> None:
        self._file = file
        self._devices = devices
        self._asks_for_keys = asks_for_keys
        self._mistakes: list[str] = []
        try:
            self._found = tomllib.loads(strip_byte_order_mark(text).decode())
        except ValueError as error:  # not UTF-8, or not TOML: the message has the line
            raise ModelsFileError(f"{SETTING}={file}: {error}") from None

    def entries(self) -> dict[str, Entry]:
        """The entries of the file, by model.

        Raises:
            ModelsFileError: with the first MAX_MISTAKES mistakes, one per line.
        """
        entries: dict[str, Entry] = {}
        for key in self._found:
            if key != "models":
                self._wrong(f"{key!r} is unknown; use tables such as [models.digits]")
        models = self._found.get("models", {})
        if not isinstance(models, dict):
            self._wrong("`models` must be a table, such as [models.digits]")
            models = {}
        for name, table in models.items():
            entry = self._entry(name, table)
            if entry is not None:
                entries[name] = entry
        if self._mistakes:
            lines = self._mistakes[:MAX_MISTAKES]
            if (more := len(self._mistakes) - MAX_MISTAKES) > 0:
                lines.append(f"and {more} more mistakes")
            raise ModelsFileError("\n  ".join((f"{SETTING}={self._file}:", *lines)))
        return entries

    def _entry(self, name: str, table: object) -> Entry | None:
        if not MODEL_NAME.fullmatch(name):
            self._wrong(f"[models] {name!r} is not a valid model name")
            return None
        if not isinstance(table, dict):
            self._wrong(f"[models] {name!r} must be a table, such as [models.{name}]")
            return None
        try:
            entry = Entry.model_validate(table)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self._wrong(_told(name, each))
            return None
        for device in () if entry.devices is None else _listed(entry.devices) or [""]:
            if device not in self._devices:
                there = ", ".join(self._devices)
                hint = (
                    "set their number with `replicas`" if "*" in device else "see TORCHLANE_DEVICES"
                )
                what = f"{device!r} is not a device of this server, which has {there}; {hint}"
                self._wrong(f"[models.{name}] devices: {what}")
        if entry.idle_s is not None and entry.load == "always":
            what = "only a model on demand is unloaded; leave it out, or set load = 'on-demand'"
            self._wrong(f"[models.{name}] idle_s: {what}")
        if entry.release is not None and entry.weights is not None:
            what = "a release sets the weights itself; leave one of the two out"
            self._wrong(f"[models.{name}] release and weights: {what}")
        release, shadow = entry.release, entry.shadow
        judged = None if release is None else release.stop_if.agreement_below
        if release and shadow and judged is not None and shadow.version != release.to:
            what = f"agreement_below compares version {release.to}, so the shadow must be the same"
            self._wrong(f"[models.{name}] release and shadow: {what}; leave shadow out")
        if entry.allowed_keys is not None and not self._asks_for_keys:
            what = "this server has no API keys; set TORCHLANE_API_KEYS_FILE"
            self._wrong(f"[models.{name}] allowed_keys: {what}")
        return entry

    def _wrong(self, what: str) -> None:
        self._mistakes.append(what if len(what) <= SHOWN else f"{what[:SHOWN]} ...")


def _told(name: str, error: ErrorDetails) -> str:
    """The message for a mistake that pydantic found."""
    key, problem = ".".join(map(str, error["loc"]))[:SHOWN], error["msg"]
    if error["type"] == "extra_forbidden":
        table, dot, last = key.rpartition(".")
        fields = TABLES.get(table, Entry).model_fields.items()
        hint = did_you_mean(
            last,
            [field.alias or known for known, field in fields],
            "docs/models-file.md lists all settings",
            show=lambda known: f"{table}{dot}{known}",
        )
        return f"[models.{name}] {key} is not a model setting; {hint}"
    if error["type"] == "missing":
        return f"[models.{name}] {key} is missing; docs/models-file.md shows an example"
    if error["type"] in ("dict_type", "model_type"):
        problem = "use a table, as docs/models-file.md shows"
    return f"[models.{name}] {key} = {error['input']!r}: {problem}"


def _read(file: Path) -> bytes:
    try:
        return read_named(file, MAX_FILE_BYTES)
    except OSError as error:
        raise ModelsFileError(f"{SETTING}={file}: {error.strerror}") from None
    except FileRejected as error:
        raise ModelsFileError(f"{SETTING}={file}: {error}") from None


def _settled(file: Path, text: bytes) -> bytes:
    """The content of the file once it stops changing; it may still be being written.

    Raises:
        ModelsFileError: if it keeps changing.
    """
    for _ in range(SETTLING_LOOKS):
        time.sleep(SETTLING_S)
        if (now := _read(file)) == text:
            return text
        text = now
    raise ModelsFileError(f"{SETTING}={file}: the file keeps changing while it is read")


def _listed(value: str) -> list[str]:
    return [each for each in map(str.strip, value.split(",")) if each]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
