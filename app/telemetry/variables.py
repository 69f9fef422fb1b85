"""OpenTelemetry's variables: whether they enable traces, and whether they are valid.

The SDK reads them itself, but for an invalid variable it only warns and uses a default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from urllib.parse import urlsplit

EXPORTER = "OTEL_TRACES_EXPORTER"
SAMPLER = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG = "OTEL_TRACES_SAMPLER_ARG"
PROPAGATORS = "OTEL_PROPAGATORS"
# In each group, the first variable that is set counts.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}  # entry points of protocols
DEFAULT_PROTOCOL = "grpc"  # the SDK's default
DEFAULT_SAMPLER = "parentbased_always_on"
DEFAULT_PROPAGATORS = "tracecontext,baggage"
RATIO, FIXED = "traceidratio", {"always_on": 1.0, "always_off": 0.0}  # samplers
# Groups of entry points.
EXPORTER_GROUP = "opentelemetry_traces_exporter"
SAMPLER_GROUP = "opentelemetry_traces_sampler"
PROPAGATOR_GROUP = "opentelemetry_propagator"
QUEUE_SIZE, BATCH_SIZE = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
COUNTS = {  # with the SDK's defaults
    "OTEL_BSP_SCHEDULE_DELAY": 5000,
    "OTEL_BSP_EXPORT_TIMEOUT": 30000,
    QUEUE_SIZE: 2048,
    BATCH_SIZE: 512,
}
PACKAGES = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.grpc",
    "opentelemetry.exporter.otlp.proto.http",
)


def wanted_by(environ: Mapping[str, str]) -> str | None:
    """The variable that enables traces, if any."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environ.get(EXPORTER, "").strip()
    if exporters:
        return None if exporters.lower() == "none" else EXPORTER
    return _first(environ, ENDPOINTS)


def check(environ: Mapping[str, str]) -> None:
    """Check the variables, if they enable traces.

    Raises:
        ValueError: if one is invalid, or if packages are missing.
    """
    asks = wanted_by(environ)
    if asks is None:
        return
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        raise ValueError(
            f"{asks}={environ[asks]!r} enables traces, which need packages that are not installed "
            f"({', '.join(missing)}): pip install 'torchlane[otel]', or set {EXPORTER}=none"
        )
    for name in exporters_of(environ):
        _check_known(EXPORTER, name, EXPORTER_GROUP, ("otlp",))
        if name in OTLP.values():
            _check_endpoint(environ, name)
    _check_known(SAMPLER, sampler_of(environ), SAMPLER_GROUP)
    ratio_of(environ)
    for name in propagators_of(environ):
        _check_known(PROPAGATORS, name, PROPAGATOR_GROUP, ("none",))
    counts = {name: count_of(environ, name) for name in COUNTS}
    if counts[BATCH_SIZE] > counts[QUEUE_SIZE]:
        raise ValueError(
            f"{BATCH_SIZE}={counts[BATCH_SIZE]} must be at most {QUEUE_SIZE}={counts[QUEUE_SIZE]}"
        )
    for name in TIMEOUTS:
        _check_timeout(environ, name)


def exporters_of(environ: Mapping[str, str]) -> list[str]:
    """The names of the exporters' entry points; for OTLP that of its protocol.

    Raises:
        ValueError: if there is no such protocol.
    """
    names = _names(environ.get(EXPORTER, "")) or ["otlp"]
    return [_otlp(environ) if name == "otlp" else name for name in names]


def sampler_of(environ: Mapping[str, str]) -> str:
    """The name of the sampler."""
    return environ.get(SAMPLER, "").strip().lower() or DEFAULT_SAMPLER


def ratio_of(environ: Mapping[str, str]) -> float | None:
    """The share of traces that the sampler chooses; None if it decides otherwise.

    Raises:
        ValueError: if it is not a number from 0 to 1.
    """
    name = sampler_of(environ).removeprefix("parentbased_")
    if name in FIXED:
        return FIXED[name]
    if name != RATIO:
        return None
    given = environ.get(SAMPLER_ARG, "").strip() or "1.0"
    ratio = _number(given)
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{SAMPLER_ARG}={given!r} must be a number from 0 to 1")
    return ratio


def propagators_of(environ: Mapping[str, str]) -> list[str]:
    """The names of the propagators."""
    return _names(environ.get(PROPAGATORS, "")) or _names(DEFAULT_PROPAGATORS)


def count_of(environ: Mapping[str, str], name: str) -> int:
    """The number that one of `COUNTS` sets.

    Raises:
        ValueError: if it is not a positive whole number.
    """
    given = environ.get(name, "").strip()
    if not given:
        return COUNTS[name]
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ValueError(f"{name}={given!r} must be a positive whole number")
    return int(given)


def _otlp(environ: Mapping[str, str]) -> str:
    name = _first(environ, PROTOCOLS)
    protocol = environ[name].strip().lower() if name else DEFAULT_PROTOCOL
    if protocol not in OTLP:
        raise ValueError(f"{name}={protocol!r} must be one of {', '.join(OTLP)}")
    return OTLP[protocol]


def _check_endpoint(environ: Mapping[str, str], exporter: str) -> None:
    name = _first(environ, ENDPOINTS)
    if name is None:
        return
    given = environ[name].strip()
    try:
        url = urlsplit(given if "://" in given or exporter != OTLP["grpc"] else f"http://{given}")
        good = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    if not good or any(each.isspace() for each in given):
        raise ValueError(f"{name}={given!r} must be a URL such as http://collector:4317")


def _check_known(variable: str, name: str, group: str, also: Iterable[str] = ()) -> None:
    known = sorted({*entry_points(group=group).names, *also})
    if name not in known:
        raise ValueError(f"{variable}={name!r} must be one of {', '.join(known)}")


def _check_timeout(environ: Mapping[str, str], name: str) -> None:
    given = environ.get(name, "").strip()
    if given and not 0 < _number(given) < math.inf:
        raise ValueError(f"{name}={given!r} must be a positive number of seconds")


def _first(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((name for name in names if environ.get(name, "").strip()), None)


def _names(given: str) -> list[str]:
    return [name for each in given.split(",") if (name := each.strip().lower())]


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return math.nan


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
