"""Settings: environment variables with the prefix TORCHLANE_, or a `.env` file; read once, frozen.

`docs/settings.md` is the same list for people; a test keeps the two together.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import AfterValidator, ByteSize, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.plan import Precision

PREFIX = "TORCHLANE_"
MIB = 1024 * 1024


def _name_or_none(value: str | None) -> str | None:
    return value or None


class SettingsError(Exception):
    """A setting is wrong; the message names the variable and says what would be right."""


class Settings(BaseSettings):
    """Everything that can be set; units stand in the names."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one and logs it."""
    workers: int = Field(1, ge=1, le=256)
    """Processes behind the port; each has its own cache, queue, flights, limits and models."""
    model_dir: Path = Path("artifacts")
    """The repository: the folder that `python -m export --out` wrote to."""
    default_model: Annotated[str | None, AfterValidator(_name_or_none)] = None
    """What /predict means; unset: the only model there is, else `digits`."""
    devices: str = Field("auto", pattern=r"^(auto|cpu(\*[1-9][0-9]?)?|cuda:[0-9]+(,cuda:[0-9]+)*)$")
    """`auto` (every visible CUDA device, else the CPU), `cpu`, `cpu*2`, or `cuda:0,cuda:1`."""
    replicas_per_device: int = Field(1, ge=1, le=64)
    """Replicas on each device; each is a thread with its own copy of every model."""
    variant: Annotated[str | None, AfterValidator(_name_or_none)] = None
    """The only variant to serve, such as `script`; unset: the artifact's plan."""
    plan_precision: Precision | None = None
    """The precision to compute in, at every batch size; unset: the artifact's own choice."""
    max_batch_size: int = Field(64, ge=1, le=4096)
    """Items in one batch at most."""
    batch_wait_ms: float = Field(0, ge=0, le=10_000, allow_inf_nan=False)
    """How long the oldest item waits for company although a replica is idle."""
    queue_limit_items: int = Field(1024, ge=1)
    """Items of one model that may wait; more are refused at once."""
    request_timeout_ms: float = Field(30_000, gt=0, allow_inf_nan=False)
    """A request's time where it does not say X-Torchlane-Timeout-Ms; also the most it may say."""
    max_body_bytes: ByteSize = Field(ByteSize(16 * MIB), gt=0)
    """Bytes of one request body at most; `16MiB` and the like are read as well."""
    max_items: int = Field(1024, ge=1)
    """Items of one request at most."""
    max_answer_bytes: ByteSize = Field(ByteSize(64 * MIB), gt=0)
    """Bytes of the arrays in one answer at most; JSON is some times as long."""
    cache_bytes: ByteSize = Field(ByteSize(256 * MIB), ge=0)
    """Real bytes of the prediction cache; 0 turns it off."""
    cache_ttl_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    """How long a prediction is kept at most; unset: for ever."""
    drain_s: float = Field(30, gt=0, allow_inf_nan=False)
    """Budget of a graceful stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are written."""
    log_format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines: one object a line."""


def load_settings(environment: Mapping[str, str], **chosen: Any) -> Settings:
    """Read the settings.

    Args:
        environment: to look for misspelt names in; the values come from the process's own.
        chosen: values that win over it, such as those of the command line.

    Raises:
        SettingsError: at a wrong value or an unknown TORCHLANE_ name.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in (*environment, *dotenv_values(".env")):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; docs/settings.md lists all"
            raise SettingsError(f"{name} is not a setting{hint}")
    try:
        return Settings(**chosen)
    except ValidationError as error:
        lines = []
        for each in error.errors(include_url=False):
            name = str(each["loc"][0]).upper()
            name = name if name.startswith(PREFIX) else PREFIX + name
            problem = each["msg"].removeprefix("Value error, ")
            lines.append(f"{name}={each['input']!r}: {problem}")
        raise SettingsError("\n".join(lines)) from error
