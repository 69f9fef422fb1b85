"""Which servers are measured with ours in which workload, and how each is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.bench import launch
from loadtests.bench.launch import Contestant, Serving, contestants, spec_of
from loadtests.bench.servers import Cores
from loadtests.bench.workloads import (
    BARE,
    BEFORE,
    BF16,
    INFINITY,
    INT8,
    JSON_32,
    LITSERVE,
    MLSERVER,
    MOSEC,
    NATIVE,
    OURS,
    PLAIN,
    PLAIN_ENCODER,
    PYTHON,
    PYTRITON,
    SERVERS,
    WORKLOADS,
)

BY_NAME = {workload.name: workload for workload in WORKLOADS}
SERVING = Serving(Path("/repository/digits/3"), Cores(1, 0))


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {LITSERVE: "not there"}
    monkeypatch.setattr(launch, "why_not", absent.get)
    monkeypatch.setattr(launch, "SHARED_WORKERS", (1, 3))


def test_every_available_server_is_measured() -> None:
    others, left_out = contestants(JSON_32, SERVERS)
    assert [each.key for each in others] == [
        *(
            "mosec",
            "plain_fastapi",
            "mlserver",
            "bare_asgi",
            "torchlane_python",
            "torchlane_before",
        ),
    ]
    assert left_out == {LITSERVE: "not there"}


def test_shared_cores_add_runs_with_several_workers() -> None:
    others, _ = contestants(BY_NAME["json-64-shared"], (MOSEC, PLAIN, PYTHON))
    assert [each.key for each in others] == [
        *("mosec", "mosec*3", "plain_fastapi", "plain_fastapi*3", "torchlane_python")
    ]


def test_server_without_binary_input_is_left_out() -> None:
    others, left_out = contestants(BY_NAME["binary-32"], (MOSEC, MLSERVER, BARE))
    assert [each.key for each in others] == ["mosec", "bare_asgi"]
    assert "reads only JSON" in left_out[MLSERVER]


def test_torchlane_starts_with_its_default_settings() -> None:
    pinned = spec_of(Contestant(OURS), JSON_32, SERVING)
    assert pinned.core == 1
    assert ("TORCHLANE_MODEL_DIR", "/repository") in pinned.environment
    assert ("TORCHLANE_DEFAULT_MODEL", "digits") in pinned.environment
    shared = spec_of(Contestant(OURS), BY_NAME["json-64-shared"], SERVING)
    assert shared.core is None
    assert shared.environment == pinned.environment
    given = {name for name, _ in shared.environment if name.startswith("TORCHLANE")}
    assert given == {f"TORCHLANE_{name}" for name in ("HOST", "PORT", "MODEL_DIR", "DEFAULT_MODEL")}
    assert spec_of(Contestant(OURS), BY_NAME["zipf"], SERVING) == pinned


def test_two_protocols_share_one_torchlane_process() -> None:
    v2 = BY_NAME["v2-binary-32"]
    native = spec_of(Contestant(NATIVE), v2, SERVING)
    assert native == spec_of(Contestant(OURS), v2, SERVING)
    assert native == spec_of(Contestant(OURS), BY_NAME["binary-32"], SERVING)


def test_sentences_run_in_each_precision_of_the_artifact() -> None:
    asked = (INFINITY, BF16, INT8)
    others, left_out = contestants(BY_NAME["text-32"], asked, {"float32", "int8"})
    assert [each.key for each in others] == ["infinity", "torchlane_int8"]
    assert left_out == {BF16: "the artifact has no variant in bf16"}
    told = dict(spec_of(Contestant(INT8), BY_NAME["text-32"], SERVING).environment)
    assert told["TORCHLANE_PLAN_PRECISION"] == "int8"


def test_peers_use_the_weights_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    told = dict(spec_of(Contestant(PLAIN_ENCODER), BY_NAME["text-32"], SERVING).environment)
    assert (Path(told["BENCH_WEIGHTS"]) / "model.safetensors").exists()
    spec = spec_of(Contestant(INFINITY), BY_NAME["text-32"], SERVING)
    assert dict(spec.environment)["INFINITY_MODEL_ID"] == told["BENCH_WEIGHTS"]
    assert spec.command[1:] == ("v2",)
    monkeypatch.setattr(launch, "weights", lambda: None)
    _, left_out = contestants(BY_NAME["text-32"], (INFINITY,))
    assert "is not installed" in left_out[INFINITY]


def test_single_process_server_is_measured_once() -> None:
    others, _ = contestants(BY_NAME["text-32-shared"], (INFINITY, PLAIN_ENCODER))
    assert [each.key for each in others] == ["infinity", "plain_encoder", "plain_encoder*3"]


def test_only_servers_that_survive_suspension_are_suspended() -> None:
    v2 = BY_NAME["v2-binary-32"]
    assert [spec_of(Contestant(each), v2, SERVING).sleeps for each in (OURS, PYTRITON)] == [
        True,
        False,
    ]


def test_torchlane_runs_from_checkout_or_compiled_package() -> None:
    pure = dict(spec_of(Contestant(OURS), JSON_32, SERVING).environment)
    assert not {"PYTHONPATH", "PYTHONSAFEPATH"} & set(pure)
    compiled = replace(SERVING, package=Path("/compiled"), before=Path("/earlier"))
    told = dict(spec_of(Contestant(OURS), JSON_32, compiled).environment)
    assert (told["PYTHONPATH"], told["PYTHONSAFEPATH"]) == ("/compiled", "1")
    told = dict(spec_of(Contestant(BEFORE), JSON_32, compiled).environment)
    assert (told["PYTHONPATH"], told["PYTHONSAFEPATH"]) == ("/earlier", "1")
    python = dict(spec_of(Contestant(PYTHON), JSON_32, compiled).environment)
    assert python == pure


def test_peer_gets_model_body_and_workers() -> None:
    spec = spec_of(Contestant(MOSEC, 2), BY_NAME["binary-32"], SERVING)
    told = dict(spec.environment)
    assert told["BENCH_ARTIFACT"] == "/repository/digits/3"
    assert told["BENCH_BODY"] == "binary"
    assert (told["BENCH_PORT"], told["BENCH_WORKERS"]) == ("{port}", "2")


def test_bare_server_is_the_same_for_every_body() -> None:
    specs = {spec_of(Contestant(BARE), BY_NAME[name], SERVING) for name in ("zipf", "binary-32")}
    assert len(specs) == 1
