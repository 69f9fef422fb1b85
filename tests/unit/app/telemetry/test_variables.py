"""OpenTelemetry's variables: when they ask for traces, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from app.telemetry import variables
from app.telemetry.variables import check, exporters_of, propagators_of, ratio_of, wanted_by

URL = "http://collector:4317"
ON = {"OTEL_TRACES_EXPORTER": "otlp"}


@pytest.mark.parametrize(
    ("environ", "asks"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "wrong"}, None),
        (ON, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": " "}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ON, "OTEL_SDK_DISABLED": "True"}, None),
        ({**ON, "OTEL_SDK_DISABLED": "yes"}, "OTEL_TRACES_EXPORTER"),
    ],
)
def test_variables_that_request_traces(environ: dict[str, str], asks: str | None) -> None:
    assert wanted_by(environ) == asks
    check(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_PROPAGATORS", "tracecontext,b4"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/xml"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "udp"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://two words"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        check({**ON, name: value})
    assert value.rpartition(",")[2] in str(caught.value)


@pytest.mark.parametrize("share", ["1.5", "-0.1", "half", "nan"])
def test_invalid_ratio_is_refused(share: str) -> None:
    environ = {**ON, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": share}
    with pytest.raises(ValueError, match=f"OTEL_TRACES_SAMPLER_ARG='{share}' must be a number"):
        check(environ)


def test_variables_are_parsed() -> None:
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    assert ratio_of(ratio) == 0.01
    assert ratio_of({"OTEL_TRACES_SAMPLER_ARG": "x"}) == 1.0
    assert ratio_of({"OTEL_TRACES_SAMPLER": "always_off"}) == 0.0
    assert ratio_of({"OTEL_TRACES_SAMPLER": "jaeger_remote"}) is None
    assert exporters_of({}) == ["otlp_proto_grpc"]
    assert exporters_of(
        {"OTEL_TRACES_EXPORTER": "otlp, console", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    ) == ["otlp_proto_http", "console"]
    assert propagators_of({}) == ["tracecontext", "baggage"]
    for endpoint in ("collector:4317", "https://[::1]:4317/"):
        check({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "PACKAGES", ("opentelemetry.sdk", "nothing.of.that"))
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_ENDPOINT=") as caught:
        check({"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert "(nothing.of.that)" in str(caught.value)
    assert "pip install 'torchlane[otel]'" in str(caught.value)
    check({})
