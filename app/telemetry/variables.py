"""Whether OpenTelemetry's variables enable traces; its SDK reads them (`provider.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from models.system.extras import MissingExtra, check_extra

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
        MissingExtra: if they do, and packages are missing.
    """
    asks = wanted_by(environ)
    if asks is None:
        return False
    try:
        check_extra(f"{asks}={environ[asks]!r}", "otel", PACKAGES)
    except MissingExtra as error:
        raise MissingExtra(f"{error}, or set {EXPORTER}=none") from None
    return True
