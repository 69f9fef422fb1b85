"""The application of Ray Serve is configured so that its parts agree; tests/ray runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import PREFIX, Settings, load_settings

CONFIG = Path(__file__).parents[2] / "deploy" / "ray" / "config.yaml"


def test_drain_timeouts_and_core_counts_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    (application,) = config["applications"]
    variables: dict[str, str] = application["runtime_env"]["env_vars"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        assert name.removeprefix(PREFIX).lower() in Settings.model_fields
    settings = load_settings(os.environ)
    deployment: dict[str, Any]
    (deployment,) = application["deployments"]
    wait_s = deployment["graceful_shutdown_wait_loop_s"]
    in_flight_s = settings.request_timeout_ms / 1000
    assert in_flight_s < config["http_options"]["request_timeout_s"]
    assert in_flight_s + settings.drain_s + wait_s < deployment["graceful_shutdown_timeout_s"]
    assert settings.cpu_threads == deployment["ray_actor_options"]["num_cpus"]
    module, name = application["import_path"].split(":")
    file = CONFIG.parents[2] / f"{module.replace('.', '/')}.py"
    assert f"\n{name} = " in file.read_text()
    assert f'serve.deployment(name="{deployment["name"]}")' in file.read_text()
