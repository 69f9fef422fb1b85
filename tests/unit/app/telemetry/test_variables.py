"""OpenTelemetry's variables: when they ask for traces."""

from __future__ import annotations

import pytest

from app.telemetry import variables
from app.telemetry.variables import traces_wanted, wanted_by
from models.system.extras import MissingExtra

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
    assert traces_wanted(environ) is (asks is not None)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "PACKAGES", ("opentelemetry.sdk", "nothing.of.that"))
    with pytest.raises(MissingExtra, match="OTEL_EXPORTER_OTLP_ENDPOINT=") as caught:
        traces_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert "(nothing.of.that)" in str(caught.value)
    assert "pip install 'torchlane[otel]'" in str(caught.value)
    assert not traces_wanted({})
