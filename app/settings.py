"""Settings: environment variables with the prefix TORCHLANE_, or a `.env` file; read once, frozen.

`docs/settings.md` documents the same list; a test checks that it matches.
"""

from __future__ import annotations

import functools
import ipaddress
import math
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.registry.model_settings import MODEL_NAME
from models.choices import Precision, did_you_mean
from models.stores.urls import StoreUrl, place
from models.system.local_paths import local_path

PREFIX = "TORCHLANE_"
LOAD_TESTS = "TORCHLANE_LOAD_"  # their variables may be in the same environment
MIB = 1024 * 1024
LEAST_MODEL_MEMORY = MIB
# Heading in `--help` and in docs/settings.md -> the first of its settings, which are in this order.
GROUPS = {
    "Basics": "host",
    "Models": "versions",
    "Devices": "devices",
    "Batching": "max_batch_size",
    "Limits": "queue_limit_items",
    "Cache": "cache_bytes",
    "Security": "api_keys_file",
    "Connections": "head_timeout_s",
    "Logs and errors": "show_model_errors",
}
QUIET = ("warning", "error")  # levels without the lines of requests
# What the server does if these are unset. An empty variable, for example because its secret is
# missing, must not have the same effect.
OPEN_WHERE_UNSET = {
    "TRUSTED_KEYS": "load unsigned artifacts",
    "API_KEYS": "use no keys from the environment",
    "API_KEYS_FILE": "use no keys from a file",
    "RATE_LIMIT": "set no rate limit",
    "OPEN_METRICS": "let anyone read /metrics",
    "TRUSTED_HOSTS": "accept any Host header",
}
# Hints that pydantic's messages lack, by the type of its error.
RIGHT = {
    "byte_size": "; use 1048576, 16MiB or 1GB",
    "bool_parsing": "; use true or false",
}
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")
DEVICE = re.compile(r"cpu(\*[1-9][0-9]?)?|cuda:[0-9]+")
ROUTE = re.compile(r"(/[A-Za-z0-9._:-]+)+")
ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
)


def _name_or_none(value: str | None) -> str | None:
    return value or None


def _number_or_auto(value: object) -> object:
    if value == "auto":
        return None
    if isinstance(value, str) and not value.strip().isdecimal():
        raise ValueError("use auto or a number from 1 to 256")
    return value


def _version_policy(text: str) -> str:
    # Not at the top: its imports take long, and `--help` needs none of them.
    from app.serving.version_policy import VersionPolicy  # noqa: PLC0415

    VersionPolicy.parse(text)
    return text


def _model_name(value: str | None) -> str | None:
    if value and not MODEL_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid model name, such as digits")
    return value or None


def _model_names(value: str | None) -> str | None:
    for each in listed(value or ""):
        if each != "*" and not MODEL_NAME.fullmatch(each):
            raise ValueError(f"{each!r} is not a valid model name; use digits,pairwise or *")
    return value or None


def _devices(value: str) -> str:
    parts = listed(value)
    if parts == ["auto"]:
        return "auto"
    for each in parts:
        if not DEVICE.fullmatch(each):
            raise ValueError(f"{each!r} is not a device; {_devices_hint(each)}")
    return ",".join(parts) or "auto"


def _devices_hint(given: str) -> str:
    if given.lower() in ("gpu", "gpus", "cuda", "nvidia"):
        return "a GPU has a number, as in cuda:0 or cuda:0,cuda:1; auto takes all GPUs"
    if given == "auto":
        return "auto cannot be combined"
    return "use auto, cpu, cpu*2 (two replicas) or cuda:0, with commas between several"


def _cache_url(value: str | None) -> str | None:
    """Check the form of a URL; the message quotes none of it, since it may contain a password."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        is_path = parts.scheme == "unix"
        known = is_path or parts.scheme in ("redis", "rediss")
        named = bool(parts.path) if is_path else bool(parts.hostname) and parts.port != 0
        numbered = is_path or re.fullmatch(r"(/[0-9]{0,9})?", parts.path) is not None
    except ValueError:  # for example, the port is not a number
        known = named = numbered = False
    if not (known and named and numbered):
        raise ValueError(
            "it is no URL of the form redis://USER:PASSWORD@HOST:PORT/DATABASE, rediss://... (TLS) "
            "or unix:///PATH; percent-encode / @ : # ? in a password"
        )
    return value


def _hosts(value: str) -> str:
    for each in listed(value):
        if each != "*" and not HOST.fullmatch(each):
            raise ValueError(f"{each!r} is not a host; use example.com, *.example.com or *")
    return value


def _origins(value: str | None) -> str | None:
    for each in listed(value or ""):
        if each != "*" and not ORIGIN.fullmatch(each):
            raise ValueError(f"{each!r} is not an origin; use https://example.com:8443 or *")
    return value or None


def _route(value: str | None) -> str | None:
    if value and not ROUTE.fullmatch(value):
        raise ValueError(f"{value!r} is not a path, such as /platform/predict")
    return value or None


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host, given as a name or as an address in any form."""
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except (OSError, UnicodeError):  # listening there will fail too
        return False
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return bool(addresses) and all(
        (getattr(each, "ipv4_mapped", None) or each).is_loopback for each in addresses
    )


def listed(value: str) -> list[str]:
    """The parts of a comma-separated value."""
    return [each for each in map(str.strip, value.split(",")) if each]


def _bytes_or_share(value: object) -> float:
    """A share of at most 1, or bytes as pydantic reads them."""
    try:
        number = float(str(value))
    except ValueError:
        number = float(TypeAdapter(ByteSize).validate_python(value))
    if not (0 < number <= 1 or LEAST_MODEL_MEMORY <= number < math.inf):
        raise ValueError(
            f"must be a share from 0 to 1, or at least {LEAST_MODEL_MEMORY} bytes, such as 2GiB"
        )
    return number


def _shown(given: object) -> object:
    """A value for a message; of a URL that may have a password only the beginning."""
    scheme, found, rest = str(given).partition("://")
    return f"{scheme}://..." if found and set("@?#") & set(rest) else given


LocalPath = Annotated[Path, BeforeValidator(local_path)]


class SettingsError(Exception):
    """A wrong setting; the message names the variable and the valid values."""


class Settings(BaseSettings):
    """All settings; their names carry the units."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,  # for --help
    )

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 chooses a free one and logs it."""
    grpc_port: int | None = Field(None, ge=1, le=65535)
    """The port for the Open Inference Protocol over gRPC; unset: none. Needs torchlane[grpc]."""
    workers: Annotated[int | None, BeforeValidator(_number_or_auto)] = Field(None, ge=1, le=256)
    """Processes behind the port; unset or `auto`: one per core for small models, else one."""
    model_dir: Annotated[Path | StoreUrl, BeforeValidator(place)] = Path("artifacts")
    """The repository: what `torchlane export --out` wrote to; a folder, or s3://bucket/models."""
    versions: Annotated[str, AfterValidator(_version_policy)] = "latest"
    """Versions to serve: `latest`, `latest:2`, `all`, `none`, `3,5`; `digits=3;none` for models."""
    reload_s: float = Field(5, ge=0, le=86_400, allow_inf_nan=False)
    """Seconds between two checks for new versions; 0: only on POST /admin/reload."""
    source_poll_s: float = Field(30, ge=0, le=86_400, allow_inf_nan=False)
    """Seconds between two looks at a store of models; 0: only on POST /admin/reload."""
    source_cache: LocalPath | None = None
    """Folder for files from stores, and what loads took; unset: torchlane in the user's cache."""
    source_cache_bytes: ByteSize = Field(ByteSize(50 * 1024 * MIB), gt=0)
    """Maximum bytes of that folder."""
    trusted_keys: LocalPath | None = None
    """Public keys, a PEM file or a folder of them: only artifacts signed by one are loaded."""
    load: Literal["all", "on-demand"] = "all"
    """`on-demand`: a model is loaded when a request needs it, and unloaded for others."""
    model_memory: Annotated[float, BeforeValidator(_bytes_or_share)] = 0.8
    """Memory of models in all processes: `8GiB`, or a share of the machine's, such as `0.8`."""
    min_resident_s: float = Field(10, ge=0, le=86_400, allow_inf_nan=False)
    """Seconds for which a model on demand stays once it is loaded."""
    handlers: Literal["off", "on", "signed"] = "off"
    """Whether handlers run: users' own Python, in processes of its own; `signed`: signed ones."""
    default_model: Annotated[str | None, AfterValidator(_model_name)] = None
    """The model that /predict uses; unset: the only model in the repository."""
    required_models: Annotated[str | None, AfterValidator(_model_names)] = None
    """Models needed for readiness: `digits,pairwise`; `*`: all that are there at the start."""
    models_file: LocalPath | None = None
    """A TOML file with settings of single models; it is read again when it changes."""
    devices: Annotated[str, AfterValidator(_devices)] = "auto"
    """`auto` (every visible CUDA device, else the CPU), or `cpu`, `cpu*2`, `cuda:0,cuda:1`."""
    replicas_per_device: int | None = Field(None, ge=1, le=64)
    """Replicas on each device; unset: one, or with `auto` on a CPU as measured."""
    cpu_threads: int | None = Field(None, ge=1, le=1024)
    """Intra-op threads of each CPU replica; unset: its share of the cores, or as measured."""
    variant: Annotated[str | None, AfterValidator(_name_or_none)] = None
    """The only variant to serve, such as `script`; unset: the artifact's plan."""
    plan_precision: Precision | None = None
    """The precision to compute in, at every batch size; unset: the artifact's choice."""
    max_batch_size: int = Field(64, ge=1, le=4096)
    """Maximum number of items in a batch."""
    batch_wait_ms: float = Field(0, ge=0, le=10_000, allow_inf_nan=False)
    """Milliseconds that the oldest item waits for more items although a replica is idle."""
    queue_limit_items: int = Field(1024, ge=1)
    """Maximum number of queued items of one model; more are rejected at once."""
    queue_limit_bytes: ByteSize = Field(ByteSize(1024 * MIB), gt=0)
    """Maximum bytes of one model's queued items in all processes; more are rejected at once."""
    request_timeout_ms: float = Field(30_000, gt=0, allow_inf_nan=False)
    """Default time of a request in milliseconds; X-Torchlane-Timeout-Ms can only shorten it."""
    hang_s: float = Field(15, gt=0, allow_inf_nan=False)
    """Seconds after which a forward counts as hung: its replica goes on without it."""
    max_body_bytes: ByteSize = Field(ByteSize(16 * MIB), gt=0)
    """Maximum bytes of one request body; `16MiB` and the like are accepted too."""
    bodies_limit_bytes: ByteSize = Field(ByteSize(1024 * MIB), gt=0)
    """Maximum bytes of arriving request bodies in all processes; more are rejected at once."""
    max_items: int = Field(1024, ge=1)
    """Maximum number of items in a request."""
    max_answer_bytes: ByteSize = Field(ByteSize(64 * MIB), gt=0)
    """Maximum bytes of the arrays in one answer; as JSON they are several times as long."""
    answers_limit_bytes: ByteSize = Field(ByteSize(512 * MIB), gt=0)
    """Maximum bytes of answers that are not sent yet in all processes; more are rejected."""
    cache_bytes: ByteSize = Field(ByteSize(256 * MIB), ge=0)
    """Maximum bytes of the prediction cache of all processes, with overhead; 0 turns it off."""
    cache_ttl_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Maximum seconds that a prediction is cached; unset: no limit."""
    cache_url: Annotated[str | None, AfterValidator(_cache_url)] = Field(None, repr=False)
    """A Redis or Valkey as second cache, shared by servers: `redis://host:6379`."""
    cache_budget_ms: float = Field(5, gt=0, le=10_000, allow_inf_nan=False)
    """Maximum milliseconds that a request waits for the second cache."""
    cache_shared_ttl_s: float = Field(86_400, ge=0.001, le=315_360_000, allow_inf_nan=False)
    """Maximum seconds that a prediction is kept in the second cache."""
    api_keys_file: LocalPath | None = None
    """A file with one API key a line; it is read again when it changes."""
    api_keys: Annotated[str | None, AfterValidator(_name_or_none)] = Field(None, repr=False)
    """API keys, separated by semicolons: hashes, never the keys themselves."""
    rate_limit: Annotated[str | None, AfterValidator(_name_or_none)] = None
    """Items per time for each key without its own limit, such as `100/second`."""
    open_metrics: bool = True
    """Whether GET /metrics and GET /live need no key; `false`: one with the scope `metrics`."""
    trusted_hosts: Annotated[str, AfterValidator(_hosts)] = "*"
    """Accepted Host headers: `example.com,*.example.org`; `*`: any."""
    cors_origins: Annotated[str | None, AfterValidator(_origins)] = None
    """Origins whose scripts may call from a browser: `https://example.com`; `*`: any."""
    predict_route: Annotated[str | None, AfterValidator(_route)] = None
    """Another path of POST /invocations, for a platform that chooses it: `/vertex/predict`."""
    health_route: Annotated[str | None, AfterValidator(_route)] = None
    """Another path of GET /health, for a platform that chooses it."""
    page: Literal["auto", "on", "off"] = "auto"
    """Whether GET / has a page; `auto`: on loopback addresses, or if there are API keys."""
    head_timeout_s: float = Field(10, gt=0, allow_inf_nan=False)
    """Seconds for the head of a request, from the connection's start or the head's first byte."""
    keep_alive_s: float = Field(75, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds that a connection may be idle after an answer; longer than your balancer's."""
    drain_s: float = Field(30, gt=0, allow_inf_nan=False)
    """Maximum seconds of a graceful stop."""
    show_model_errors: bool = False
    """Whether answers include the model's own error text, which may name paths."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest severity that is logged."""
    log_format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines: one object a line."""
    access_log: Literal["off", "errors", "sampled", "all"] = "errors"
    """Requests with a line in the log: failed and slow ones (`errors`), more of them, or none."""
    access_log_share: float = Field(0.01, gt=0, le=1)
    """The share of the other requests that `sampled` logs."""

    @functools.cached_property  # may query DNS
    def shows_page(self) -> bool:
        """Whether GET / has a page."""
        if self.page == "auto":
            asks_for_keys = self.api_keys is not None or self.api_keys_file is not None
            return asks_for_keys or _is_loopback(self.host)
        return self.page == "on"

    @property
    def access_log_ratio(self) -> float | None:
        """The logged share of requests that are neither failed nor slow; None: log no request."""
        if self.access_log == "off" or self.log_level in QUIET:
            return None
        return {"errors": 0.0, "sampled": self.access_log_share, "all": 1.0}[self.access_log]

    def share_of(self, nbytes: int, processes: int) -> ByteSize:
        """One process's share of a limit; one body of any allowed size still fits."""
        return ByteSize(max(nbytes // processes, min(nbytes, self.max_body_bytes)))

    def of_one_process(self, processes: int) -> Self:
        """The settings of one of several processes, with its share of each common limit."""
        shares = {
            "cache_bytes": ByteSize(self.cache_bytes // processes),
            "bodies_limit_bytes": self.share_of(self.bodies_limit_bytes, processes),
            "answers_limit_bytes": ByteSize(max(1, self.answers_limit_bytes // processes)),
            "queue_limit_bytes": self.share_of(self.queue_limit_bytes, processes),
        }
        return self.model_copy(update=shares)

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.grpc_port is not None and self.grpc_port == self.port:
            raise ValueError(
                f"{PREFIX}GRPC_PORT={self.grpc_port} is {PREFIX}PORT too: give gRPC another port"
            )
        return self

    @model_validator(mode="after")
    def _can_trust_models(self) -> Self:
        url = self.model_dir
        if isinstance(url, StoreUrl) and url.scheme == "http" and self.trusted_keys is None:
            host = url.place.rpartition(":")[0] if url.place[-1].isdigit() else url.place
            if not _is_loopback((host or url.place).strip("[]")):
                raise ValueError(
                    f"{PREFIX}MODEL_DIR={url}: models could be changed on their way: use https://, "
                    f"or {PREFIX}TRUSTED_KEYS, which checks signatures"
                )
        return self

    @model_validator(mode="after")
    def _can_log_requests(self) -> Self:
        if self.access_log in ("sampled", "all") and self.log_level in QUIET:
            raise ValueError(
                f"{PREFIX}ACCESS_LOG={self.access_log} writes lines of the level info, and "
                f"{PREFIX}LOG_LEVEL={self.log_level} leaves them out: use the level info"
            )
        return self

    @model_validator(mode="after")
    def _can_check_handlers(self) -> Self:
        if self.handlers == "signed" and self.trusted_keys is None:
            raise ValueError(
                f"{PREFIX}HANDLERS=signed needs {PREFIX}TRUSTED_KEYS, which checks signatures"
            )
        return self

    @model_validator(mode="after")
    def _has_first_cache(self) -> Self:
        if self.cache_url is not None and self.cache_bytes == 0:
            raise ValueError(
                f"{PREFIX}CACHE_URL is set and {PREFIX}CACHE_BYTES=0 turns all caching off: unset "
                "one of them"
            )
        return self

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.bodies_limit_bytes < self.max_body_bytes:
            raise ValueError(
                f"{PREFIX}BODIES_LIMIT_BYTES={self.bodies_limit_bytes} is less than "
                f"{PREFIX}MAX_BODY_BYTES={self.max_body_bytes}: such a body would never be taken"
            )
        return self


def load_settings(environment: Mapping[str, str], **chosen: Any) -> Settings:
    """Read the settings.

    Args:
        environment: searched for misspelt names; the values come from the process itself.
        chosen: values from the command line, which override the environment.

    Raises:
        SettingsError: for a wrong value, an unknown TORCHLANE_ name, or an empty protective one.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name, value in (*environment.items(), *dotenv_values(".env").items()):
        if name.upper().startswith(LOAD_TESTS):
            continue
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            hint = did_you_mean(  # without the prefix, in which all names are alike
                name.upper().removeprefix(PREFIX),
                [each.removeprefix(PREFIX) for each in known],
                "docs/settings.md lists all",
                show=PREFIX.__add__,
            )
            raise SettingsError(f"{name} is not a setting; {hint}")
        meant = OPEN_WHERE_UNSET.get(name.upper().removeprefix(PREFIX))
        if name.upper() in known and meant is not None and not value:
            raise SettingsError(f"{name} is set, but empty: unset it to {meant}")
    try:
        return Settings(**chosen)
    except ValidationError as error:
        lines = []
        for each in error.errors(include_url=False):
            problem = each["msg"].removeprefix("Value error, ") + RIGHT.get(each["type"], "")
            if not each["loc"]:  # several settings that conflict; the message names them
                lines.append(problem)
                continue
            name = str(each["loc"][0]).lower().removeprefix(PREFIX.lower())
            is_secret = name in Settings.model_fields and not Settings.model_fields[name].repr
            given = "" if is_secret else f"={_shown(each['input'])!r}"
            lines.append(f"{PREFIX}{name.upper()}{given}: {problem}")
        raise SettingsError("\n".join(lines)) from error
