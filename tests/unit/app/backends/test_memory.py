"""Memory is checked before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.backends.forward import FormBackend
from app.backends.memory import MIB, check_fits, peak_of
from app.errors import ReplicaError
from app.types import Device
from models.manifest import MANIFEST_FILE, Manifest
from models.plan import Form
from tests.artifacts import write_artifact

CPU = torch.device("cpu")
PLAIN = peak_of("torchscript", optimized=False)


def set_left(monkeypatch: pytest.MonkeyPatch, nbytes: int | None) -> None:
    monkeypatch.setattr("app.backends.memory.memory_left_bytes", lambda: nbytes)


@pytest.mark.parametrize("left", [22 * MIB, 23 * MIB, None])
def test_file_that_fits_is_accepted(monkeypatch: pytest.MonkeyPatch, left: int | None) -> None:
    set_left(monkeypatch, left)
    check_fits("script.pt", 10 * MIB, CPU, PLAIN)


def test_out_of_memory_error_names_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    set_left(monkeypatch, 1900 * MIB)
    with pytest.raises(ReplicaError) as caught:
        check_fits("script.pt", 1000 * MIB, CPU, PLAIN)
    assert str(caught.value) == (
        "script.pt does not fit: loading it takes 2,200 MiB of memory, 1,900 MiB are free; "
        "give the container more, or serve fewer models or replicas"
    )


def test_gpu_needs_memory_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    set_left(monkeypatch, 2500 * MIB)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (900 * MIB, 8000 * MIB))
    with pytest.raises(ReplicaError, match=r"1,000 MiB on cuda:1, 900 MiB are free"):
        check_fits("script.pt", 1000 * MIB, torch.device("cuda:1"), PLAIN)
    check_fits("script.pt", 900 * MIB, torch.device("cuda:1"), PLAIN)


def test_backend_checks_memory_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_artifact(tmp_path, "double")
    manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    set_left(monkeypatch, 10)
    (folder / manifest.variants["script"].file).unlink()  # it is not even opened
    backend = FormBackend(folder, manifest, Form(variant="script"), Device("cpu"))
    with pytest.raises(ReplicaError, match=r"script\.pt does not fit"):
        backend.load()
