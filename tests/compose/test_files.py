"""What docker-compose.yml and its companions say, for every combination of files and profiles."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.compose.engine import EngineError, docker
from tests.compose.stack import ROOT

pytestmark = pytest.mark.compose
EXTRA_FILES = ("docker-compose.gpu.yml", "docker-compose.admin.yml", "docker-compose.grpc.yml")
PROFILES = ((), ("load",), ("load", "trace"))
CLUSTER = "docker-compose.cluster.yml"
OF_PROFILES = {"load": {"locust", "locust-worker"}, "trace": {"jaeger", "otel-collector"}}
COMBINATIONS = [
    (files, profiles)
    for count in range(len(EXTRA_FILES) + 1)
    for files in itertools.combinations(EXTRA_FILES, count)
    for profiles in PROFILES
]


def config(
    files: tuple[str, ...], profiles: tuple[str, ...], **variables: str
) -> dict[str, dict[str, Any]]:
    """What compose makes of the files."""
    chosen = [part for file in ("docker-compose.yml", *files) for part in ("-f", str(ROOT / file))]
    asked = [part for profile in profiles for part in ("--profile", profile)]
    hidden = ("TORCHLANE_", "COMPOSE_", "GRAFANA_", "GPUS", "TAG", "PUBLISH_", "TOOLS_", "EXPORT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    text = docker(
        "compose",
        *chosen,
        *asked,
        "config",
        "--format",
        "json",
        environment=environment | variables,
    )
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("open sesame")
    return str(file)


@pytest.mark.parametrize(("files", "profiles"), COMBINATIONS)
def test_every_combination_of_files_and_profiles_is_valid(
    files: tuple[str, ...], profiles: tuple[str, ...], password: str
) -> None:
    services = config(files, profiles, GRAFANA_PASSWORD_FILE=password)["services"]
    always = {"export", "api", "prometheus", "grafana"}
    assert set(services) == always.union(*(OF_PROFILES[each] for each in profiles))
    for service in services.values():
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["cap_drop"] == ["ALL"]
        assert int(service["mem_limit"]) > 0
        assert service["pids_limit"] > 0
        assert "privileged" not in service


def test_ports_are_published_on_loopback_by_default() -> None:
    services = config((), ("load", "trace"))["services"]
    ports = {
        name: [(port["host_ip"], port["published"]) for port in service.get("ports", ())]
        for name, service in services.items()
    }
    assert ports == {
        "api": [("127.0.0.1", "8000")],
        "prometheus": [("127.0.0.1", "9090")],
        "grafana": [("127.0.0.1", "3000")],
        "locust": [("127.0.0.1", "8089")],
        "jaeger": [("127.0.0.1", "16686")],
        "otel-collector": [],
        "export": [],
        "locust-worker": [],
    }
    opened = config((), ("load",), PUBLISH_ADDRESS="0.0.0.0", TORCHLANE_PORT="80")["services"]
    others = [opened[name]["ports"][0]["host_ip"] for name in ("prometheus", "grafana", "locust")]
    assert others == ["127.0.0.1"] * 3  # what asks for no password stays where it was
    assert opened["api"]["ports"][0]["host_ip"] == "0.0.0.0"
    assert opened["api"]["ports"][0]["published"] == "80"
    assert opened["api"]["environment"]["TORCHLANE_PORT"] == "8000"  # the container's own stays


def test_long_running_services_restart_and_have_health_checks() -> None:
    services = config((), ("load", "trace"))["services"]
    for name, service in services.items():
        if name == "export":
            assert service["restart"] == "no"
            continue
        assert service["restart"] == "unless-stopped"
        if name == "api":
            assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()  # the image brings it
        else:
            assert service["healthcheck"]["test"]


def test_services_wait_for_their_dependencies() -> None:
    services = config((), ("load", "trace"))["services"]
    waits = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in services.items()
    }
    assert waits == {
        "export": {},
        "api": {"export": "service_completed_successfully"},
        "prometheus": {"api": "service_healthy"},
        "grafana": {"prometheus": "service_healthy"},
        "jaeger": {},
        "otel-collector": {"jaeger": "service_healthy"},
        "locust": {"api": "service_healthy"},
        "locust-worker": {"locust": "service_healthy"},
    }


def test_only_callers_share_a_network_with_the_server() -> None:
    services = config((), ("load", "trace"))["services"]
    networks = {name: set(service.get("networks", ())) for name, service in services.items()}
    assert networks == {
        "export": set(),
        "api": {"serving"},
        "prometheus": {"serving", "monitoring"},
        "grafana": {"monitoring"},
        "jaeger": {"monitoring"},
        "otel-collector": {"traces", "monitoring"},
        "locust": {"serving"},
        "locust-worker": {"serving"},
    }
    assert services["export"]["network_mode"] == "none"


def test_grpc_is_built_in_and_published_on_loopback() -> None:
    api = config(("docker-compose.grpc.yml",), ())["services"]["api"]
    assert api["build"]["args"]["EXTRAS"].split() == ["grpc"]
    assert api["environment"]["TORCHLANE_GRPC_PORT"] == "8001"
    ports = [(port["host_ip"], port["published"], port["target"]) for port in api["ports"]]
    assert ports == [("127.0.0.1", "8000", 8000), ("127.0.0.1", "8001", 8001)]


def test_the_server_sends_traces_only_to_the_collector() -> None:
    services = config(("docker-compose.trace.yml",), ("trace",))["services"]
    api = services["api"]
    assert api["build"]["args"]["EXTRAS"].split() == ["otel"]
    assert api["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel-collector:4317"
    assert set(api["networks"]) == {"serving", "traces"}
    (folder,) = services["otel-collector"]["volumes"]
    assert (Path(folder["source"]) / "collector.yml").is_file()
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]


def test_models_from_a_store_have_a_volume() -> None:
    store = ("docker-compose.store.yml",)
    services = config(store, (), TORCHLANE_MODEL_DIR="s3://bucket/models")["services"]
    assert "export" not in services
    api = services["api"]
    assert "depends_on" not in api
    assert api["build"]["args"]["EXTRAS"].split() == ["remote"]
    (volume,) = api["volumes"]
    assert (volume["source"], volume["target"]) == ("cache", "/cache")
    assert "read_only" not in volume
    settings = api["environment"]
    assert settings["TORCHLANE_MODEL_DIR"] == "s3://bucket/models"
    assert settings["TORCHLANE_SOURCE_CACHE"] == volume["target"]
    assert "/cache" in (ROOT / "Dockerfile").read_text()  # so that its user owns a new volume
    with pytest.raises(EngineError, match="set it to a store, such as s3://bucket/models"):
        config(store, ())


def test_haproxy_balances_any_number_of_servers() -> None:
    services = config((CLUSTER,), ("cluster",), BALANCER_SLOTS="100")["services"]
    assert set(services) == {
        *("export", "api", "haproxy", "prometheus", "grafana", "locust", "locust-worker")
    }
    assert "ports" not in services["api"]  # a port belongs to one container
    settings = services["api"]["environment"]
    haproxy = services["haproxy"]
    given = haproxy["environment"]
    assert {name: value for name, value in given.items() if value} == {"BALANCER_SLOTS": "100"}
    (port,) = haproxy["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8080", 8000)
    assert settings["TORCHLANE_KEEP_ALIVE_S"] == "3600"
    assert settings["TORCHLANE_WORKERS"] == "1"
    assert {"serving", "monitoring"} == set(haproxy["networks"])
    assert haproxy["read_only"] is True
    assert haproxy["security_opt"] == ["no-new-privileges:true"]
    assert haproxy["cap_drop"] == ["ALL"]
    assert haproxy["depends_on"]["api"]["condition"] == "service_healthy"
    (folder,) = haproxy["volumes"]
    assert (Path(folder["source"]) / "haproxy.cfg").is_file()
    assert "--config.file=/etc/prometheus/cluster.yml" in services["prometheus"]["command"]
    assert "http://haproxy:8000" in services["locust"]["command"]
    plain = config((CLUSTER,), ())["services"]
    assert "haproxy" not in plain


def test_extras_of_both_images_can_be_chosen() -> None:
    services = config(("docker-compose.grpc.yml",), (), EXTRAS="text", EXPORT_EXTRAS="examples")
    built = {name: services["services"][name]["build"]["args"] for name in ("api", "export")}
    assert built["api"]["EXTRAS"].split() == ["grpc", "text"]
    assert built["export"]["EXPORT_EXTRAS"] == "examples"


def test_gpus_are_reserved_where_they_are_used() -> None:
    services = config(("docker-compose.gpu.yml",), (), GPUS="1")["services"]
    for name in ("export", "api"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert "deploy" not in services["grafana"]


def test_grafana_has_no_admin_without_a_password_file(password: str) -> None:
    alone = config((), ())["services"]["grafana"]["environment"]
    assert alone["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert alone["GF_AUTH_BASIC_ENABLED"] == "false"
    files = ("docker-compose.admin.yml",)
    with pytest.raises(EngineError, match="GRAFANA_PASSWORD_FILE"):
        config(files, ())
    found = config(files, (), GRAFANA_PASSWORD_FILE=password)
    grafana = found["services"]["grafana"]
    assert grafana["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "false"
    assert grafana["secrets"][0]["source"] == "grafana_password"
    assert found["secrets"]["grafana_password"]["file"] == password
    assert "sesame" not in json.dumps(grafana["environment"])
