"""The files of the compose profile `trace` agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.telemetry.variables import traces_wanted, wanted_by

ROOT = Path(__file__).parents[2]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


SERVICES = read("docker-compose.yml")["services"]
API = read("docker-compose.trace.yml")["services"]["api"]
COLLECTOR = read("deploy/otel/collector.yml")


@pytest.mark.parametrize("name", ["otel-collector", "jaeger"])
def test_services_of_the_profile(name: str) -> None:
    service = SERVICES[name]
    assert service["profiles"] == ["trace"]
    assert re.search(r":-[\w./-]+:\d+\.\d+\.\d+}$", service["image"]), "a version, not `latest`"
    assert service["healthcheck"]["test"]
    assert service["read_only"] is True


def test_the_servers_variables_are_valid() -> None:
    environment = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in API["environment"].items()
    }
    assert wanted_by(environment) == "OTEL_TRACES_EXPORTER"
    assert traces_wanted(environment)
    assert API["build"]["args"]["EXTRAS"].split()[0] == "otel"


def test_every_collector_component_is_used() -> None:
    (pipeline,) = COLLECTOR["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(COLLECTOR[kind])


def test_spans_can_reach_the_collector_and_viewer() -> None:
    host, port = (
        API["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://").split(":")
    )
    assert host in SERVICES
    assert set(API["networks"]) & set(SERVICES[host]["networks"]) == {"traces"}
    assert COLLECTOR["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(f":{port}")
    viewer = COLLECTOR["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0]
    assert set(SERVICES[host]["networks"]) & set(SERVICES[viewer]["networks"])
    assert not set(API["networks"]) & set(SERVICES[viewer]["networks"])
    (source,) = read("deploy/grafana/provisioning/datasources/jaeger.yml")["datasources"]
    assert source["url"] == f"http://{viewer}:16686"
    assert SERVICES[viewer]["ports"][0].endswith(":16686")
    assert set(SERVICES["grafana"]["networks"]) & set(SERVICES[viewer]["networks"])
