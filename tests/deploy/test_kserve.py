"""deploy/kserve: the runtime fits the server and KServe."""

from __future__ import annotations

from pathlib import Path

import yaml

from app.settings import PREFIX, Settings
from tests.integration.harness import serving

ROOT = Path(__file__).parents[2]
RUNTIME = yaml.safe_load((ROOT / "deploy/kserve/clusterservingruntime.yaml").read_text())["spec"]


async def test_the_runtime_of_kserve(tmp_path: Path) -> None:
    (container,) = RUNTIME["containers"]
    assert container["name"] == "kserve-container"  # the one that KServe looks for
    variables = {each["name"].removeprefix(PREFIX): each["value"] for each in container["env"]}
    settings = Settings.model_validate({name.lower(): text for name, text in variables.items()})
    assert settings.model_dir == Path("/mnt/models")  # where KServe puts what a storageUri names
    ports = {each["containerPort"] for each in container["ports"]}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("readiness", "liveness")]
    assert ports | {each["port"] for each in probes} == {settings.port}
    assert RUNTIME["annotations"]["prometheus.kserve.io/port"] == str(settings.port)
    assert [each["name"] for each in RUNTIME["supportedModelFormats"]] == ["pytorch"]
    async with serving(tmp_path, wait_ready=False) as api:
        for path in (*(each["path"] for each in probes), "/metrics"):
            assert (await api.client.get(path)).status_code in (200, 503)
