"""The reader of TorchScript files that does not hold the GIL."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from models.runtimes import torchscript
from models.runtimes.torchscript import read_torchscript

COMPILED = Path(__file__).parents[4] / ".compiled/models/runtimes"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The compiled module."""
    files = list(COMPILED.glob("torchscript_file.*.so"))
    if not files:
        pytest.skip("there is no machine code: run `make compiled`")
    spec = importlib.util.spec_from_file_location("torchscript_file", files[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    torchscript._native.cache_clear()
    yield
    torchscript._native.cache_clear()


def saved(folder: Path) -> Path:
    file = folder / "script.pt"
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout())
    torch.jit.script(module).save(file)  # type: ignore[no-untyped-call]
    return file


# In a process of its own: with the GIL held it would hang.
WAITS = """
import os, sys, threading, time, torch
sys.path.insert(0, sys.argv[1])
import torchscript_file

def load():
    try:
        torchscript_file.load(sys.argv[2], "cpu")  # opening waits for a writer
    except RuntimeError:
        print("refused")

thread = threading.Thread(target=load)
thread.start()
while thread.is_alive():
    try:
        os.close(os.open(sys.argv[2], os.O_WRONLY | os.O_NONBLOCK))
    except OSError:  # it has not been opened to read
        time.sleep(0.01)
"""


def test_other_threads_run_while_a_file_is_opened(reader: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    folder = str(Path(str(reader.__file__)).parent)
    done = subprocess.run(
        [sys.executable, "-c", WAITS, folder, tmp_path / "fifo"],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "refused\n"


def test_it_reads_what_torch_reads(
    reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, x = saved(tmp_path), torch.randn(2, 4)
    expected = torch.jit.load(file).eval()(x)  # type: ignore[no-untyped-call]
    monkeypatch.setitem(sys.modules, "models.runtimes.torchscript_file", reader)
    monkeypatch.setattr(torch.jit, "load", None)
    module = read_torchscript(str(file), CPU)
    assert torch.equal(module(x), expected)
    assert not module.training
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias"]


def test_a_broken_file_is_an_error(
    reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "models.runtimes.torchscript_file", reader)
    (tmp_path / "script.pt").write_bytes(saved(tmp_path).read_bytes().replace(b"code", b"cede"))
    with pytest.raises(RuntimeError, match="Unknown type name"):
        read_torchscript(str(tmp_path / "script.pt"), CPU)


def test_a_reader_for_another_torch_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(TORCH_VERSION="1.0.0", load=None)
    monkeypatch.setitem(sys.modules, "models.runtimes.torchscript_file", other)
    assert read_torchscript(str(saved(tmp_path)), CPU)(torch.zeros(1, 4)).shape == (1, 3)
