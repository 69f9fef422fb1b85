"""A real Prometheus with the deployed configuration on a free port, and what can be asked of it."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import free_port

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus"
START_LIMIT_S = 20.0
BALANCER = """
  - job_name: haproxy
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels and its values, oldest first."""

    labels: dict[str, str]
    values: tuple[float, ...]

    @property
    def finite(self) -> tuple[float, ...]:
        return tuple(value for value in self.values if math.isfinite(value))


@dataclass(frozen=True)
class Rule:
    """An alert or a recording rule, as parsed by Prometheus."""

    name: str
    query: str
    alerts: bool
    for_s: float
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus; `client` knows its address."""

    client: httpx.Client

    def query(self, expression: str, at_s: float | None = None) -> list[Series]:
        """The value of each series at a moment of time.time(); None: now."""
        moment = {} if at_s is None else {"time": at_s}
        answer = self._get("query", query=expression, **moment)
        if answer["resultType"] == "scalar":
            return [Series({}, (float(answer["result"][1]),))]
        return [Series(each["metric"], (float(each["value"][1]),)) for each in answer["result"]]

    def query_range(self, expression: str, start_s: float, end_s: float) -> list[Series]:
        """The values of each series, second by second."""
        answer = self._get("query_range", query=expression, start=start_s, end=end_s, step=1)
        return [
            Series(each["metric"], tuple(float(value) for _, value in each["values"]))
            for each in answer["result"]
        ]

    def label_values(self, label: str, selector: str | None = None) -> list[str]:
        """The values of a label, of the series that are selected."""
        match = {} if selector is None else {"match[]": selector}
        return list(self._get(f"label/{label}/values", **match))

    def label_names(self, selector: str) -> list[str]:
        """The labels of the series that are selected."""
        return list(self._get("labels", **{"match[]": selector}))

    def rules(self) -> list[Rule]:
        """Every rule, in the order of the files."""
        groups = self._get("rules")["groups"]
        return [
            Rule(
                each["name"],
                each["query"],
                each["type"] == "alerting",
                each.get("duration", 0.0),
                each.get("labels", {}),
                each.get("annotations", {}),
            )
            for group in groups
            for each in group["rules"]
        ]

    def alert_states(self, name: str) -> set[str]:
        """`pending`, `firing`, both, or none of them: an alert's states now."""
        alerts = self._get("alerts")["alerts"]
        return {each["state"] for each in alerts if each["labels"]["alertname"] == name}

    def wait_until(self, holds: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
        """Return once something holds; Prometheus scrapes and evaluates in its own time."""
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {limit_s:.0f} s: {what}")
            time.sleep(0.1)

    def _get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=parameters).json()
        if answer["status"] != "success":
            raise ValueError(f"{answer['error']} in {parameters}")
        return answer["data"]


def missing_programs() -> list[str]:
    """Those of Prometheus's programs that are not installed here."""
    return [name for name in ("prometheus", "promtool") if shutil.which(name) is None]


def promtool(*arguments: str, folder: Path = DEPLOYED) -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder and return what it said, whether good or bad."""
    command = ["promtool", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def quick_copy(folder: Path, targets: Sequence[tuple[str, str]]) -> Path:
    """The deployed configuration with other targets, which scrapes and alerts within seconds.

    Args:
        folder: where the copy is made.
        targets: deployed address -> the one to scrape instead.

    Returns:
        The configuration file.
    """
    shutil.copytree(DEPLOYED, folder)
    config, alerts = folder / "prometheus.yml", folder / "alerts.yml"
    text = re.sub(r"(scrape|evaluation)_interval: \w+", r"\1_interval: 1s", config.read_text())
    for deployed, instead in targets:
        if text.count(f'"{deployed}"') != 1:
            raise ValueError(f"prometheus.yml does not name the target {deployed!r} once")
        text = text.replace(f'"{deployed}"', f'"{instead}"')
    config.write_text(text)
    alerts.write_text(re.sub(r"\bfor: \w+", "for: 1s", alerts.read_text()))
    return config


@contextlib.contextmanager
def running_prometheus(folder: Path, scraped_port: int, balancer_port: int) -> Iterator[Prometheus]:
    """A Prometheus on the loopback that scrapes both; stopped by its process id."""
    port = free_port()
    targets = [
        ("api:8000", f"127.0.0.1:{scraped_port}"),
        ("localhost:9090", f"127.0.0.1:{port}"),
    ]
    config = quick_copy(folder / "config", targets)
    with config.open("a") as more:
        more.write(BALANCER.format(port=balancer_port))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log_file = folder / "log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            _wait_ready(client, process, log_file)
            yield Prometheus(client)
    finally:
        process.kill()
        process.wait()


def _wait_ready(client: httpx.Client, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/-/ready").status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not become ready:\n{log_file.read_text()}")
