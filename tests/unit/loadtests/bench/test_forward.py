"""Forwards by the plan beside the plain script: what is run, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.bench.forward import PLAIN, SIZES, main, measure
from models.integrity import read_artifact
from tests.artifacts import write_artifact, write_manifest


def test_every_precision_is_measured_at_every_size_beside_the_plain_script(
    repository: Path,
) -> None:
    folder = repository / "digits" / "1"
    found = measure(folder, read_artifact(folder)[0], rounds=1)
    assert list(found["sizes"]) == list(SIZES)
    for measured in found["sizes"].values():
        assert set(measured) == {PLAIN, "float32 plan", "bf16 plan", "int8 plan"}
        assert measured[PLAIN]["ratio"] == 1
        assert all(each["us_per_item"] > 0 for each in measured.values())


def test_it_prints_one_json_object(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(repository / "pairwise" / "1"), "--rounds", "1"]) == 0
    assert "sizes" in json.loads(capsys.readouterr().out)


def test_without_a_plan_it_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_artifact(tmp_path, "double")
    assert main([str(folder)]) == 1
    assert "no plan for the CPU; run `make export` anew" in capsys.readouterr().err


def test_without_a_plain_script_there_is_nothing_to_compare_with(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = read_artifact(repository / "digits" / "1")[0]
    assert manifest.plan is not None
    device = manifest.plan.devices[0]
    int8_only = device.model_copy(update={"steps": {"int8": device.steps["int8"]}})
    plan = manifest.plan.model_copy(update={"precision": "int8", "devices": (int8_only,)})
    variants = {"int8": manifest.variants["int8"]}
    changed = manifest.model_copy(update={"plan": plan, "variants": variants})
    write_manifest(tmp_path, changed)
    assert main([str(tmp_path)]) == 1
    assert "no TorchScript variant in float32" in capsys.readouterr().err


def test_a_plan_of_another_processor_is_to_be_made_again(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = read_artifact(repository / "digits" / "1")[0]
    assert manifest.plan is not None
    other = manifest.plan.devices[0].processor.model_copy(update={"threads": 48})
    device = manifest.plan.devices[0].model_copy(update={"processor": other})
    plan = manifest.plan.model_copy(update={"devices": (device,)})
    write_manifest(tmp_path, manifest.model_copy(update={"plan": plan}))
    assert main([str(tmp_path)]) == 1
    assert f"run `python -m export tune {tmp_path} --threads 1`" in capsys.readouterr().err
