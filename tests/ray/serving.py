"""The service on Ray Serve: right answers, a replica killed, a rolling update; runs where Ray is.

python -m tests.ray.serving MODELS MODEL
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.e2e.server import PLAIN, free_port
from tests.ray.cluster import ALONE, ROOT, two_nodes
from tests.ray.truth import answers_of

CONFIG = ROOT / "deploy" / "ray" / "config.yaml"
ITEMS, CLIENTS = 64, 4
LIMIT_S = 180.0


def main(arguments: Sequence[str]) -> None:
    models, model = Path(arguments[0]), arguments[1]
    items, truth = answers_of(models, model, ITEMS)
    with two_nodes() as (cluster, _):
        # Not at the top: the variables of `two_nodes` come first.
        import ray  # noqa: PLC0415
        from ray import serve  # noqa: PLC0415

        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        port = free_port()
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            began = time.monotonic()
            _deploy(models)
            told: dict[str, Any] = {"two_replicas_ready_s": round(time.monotonic() - began, 1)}
            load = Load(f"http://127.0.0.1:{port}", model, items, truth)
            for name, act in (
                ("nothing", lambda: time.sleep(3)),
                ("a_replica_killed", _kill_one),
                ("rolling_update", lambda: _deploy(models)),
            ):
                told[name] = load.during(act)
                sys.stderr.write(f"{name}: {told[name]}\n")
        finally:
            serve.shutdown()
            ray.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


class Load:
    """Clients that ask, check each answer and count."""

    def __init__(
        self, url: str, model: str, items: Sequence[Any], truth: Sequence[tuple[str, float]]
    ) -> None:
        self._url = f"{url}/models/{model}/predict"
        self._items, self._truth = items, truth
        self._over = threading.Event()

    def during(self, act: Callable[[], object]) -> dict[str, int]:
        """What became of the requests that were sent while something happened."""
        self._over.clear()
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._ask, number) for number in range(CLIENTS)]
            try:
                act()
            finally:
                self._over.set()
            return dict(sum((each.result() for each in clients), Counter[str]()))

    def _ask(self, number: int) -> Counter[str]:
        counts = Counter[str]()
        with httpx.Client(verify=PLAIN, timeout=30, trust_env=False) as client:
            while not self._over.is_set():
                at = number % ITEMS
                number += CLIENTS
                body = {"input": self._items[at]}
                counts[self._outcome(client, body, self._truth[at])] += 1
        return counts

    def _outcome(self, client: httpx.Client, body: object, truth: tuple[str, float]) -> str:
        try:
            answer = client.post(self._url, json=body)
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code != 200:
            return f"status {answer.status_code}"
        label, score = truth
        got = answer.json()["prediction"]
        same = got["label"] == label and abs(max(got["scores"]) - score) < 1e-4
        return "right" if same else "wrong"


def _deploy(models: Path) -> None:
    """Deploy what the file says, of two replicas; one that runs is replaced under load."""
    from ray import serve  # noqa: PLC0415
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415

    from deploy.ray import service  # noqa: PLC0415

    written = yaml.safe_load(CONFIG.read_text())
    ServeDeploySchema.model_validate(written)  # as `serve deploy` reads it
    (application,) = written["applications"]
    (deployment,) = application["deployments"]
    options = {key: deployment[key] for key in deployment.keys() - {"name", "autoscaling_config"}}
    settings = application["runtime_env"]["env_vars"] | {"TORCHLANE_MODEL_DIR": str(models)}
    options["ray_actor_options"] |= {"runtime_env": {"env_vars": settings | ALONE}}
    made = service.deployment.options(num_replicas=2, **options).bind()
    serve.run(made, name=application["name"], route_prefix=application["route_prefix"])


def _kill_one() -> None:
    """Kill a replica, and wait until there are two again."""
    time.sleep(2)
    victim = min(_replicas())
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while victim in _replicas() or not _two_run():
        assert time.monotonic() < deadline, "the replica was not replaced"
        time.sleep(0.2)
    time.sleep(2)


def _replicas() -> list[int]:
    """The processes of the replicas: descendants of this one, which started the nodes."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "ServeReplica:torchlane" in " ".join(each.cmdline()):
                found.append(each.pid)
    return found


def _two_run() -> bool:
    from ray import serve  # noqa: PLC0415

    status = serve.status().applications["torchlane"].deployments["Torchlane"]
    return dict(status.replica_states).get("RUNNING") == 2 and len(_replicas()) == 2


if __name__ == "__main__":
    main(sys.argv[1:])
