"""Whether OpenTelemetry's variables enable traces; its SDK reads them (`provider.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
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
    return next((name for name in ENDPOINTS if environ.get(name, "").strip()), None)


def traces_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the variables enable traces.

    Raises:
        ValueError: if they do, and packages are missing.
    """
    asks = wanted_by(environ)
    if asks is None:
        return False
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        raise ValueError(
            f"{asks}={environ[asks]!r} enables traces, which need packages that are not installed "
            f"({', '.join(missing)}): pip install 'torchlane[otel]', or set {EXPORTER}=none"
        )
    return True


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
