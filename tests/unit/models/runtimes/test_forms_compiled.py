"""Packages are shared while they are used, leave nothing behind, and get only fitting inputs."""

from __future__ import annotations

import io
import os
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.variants.compiled import AotInductor
from models.runtimes import forms, packages
from models.runtimes.base import SharedModels, VariantFile
from models.runtimes.forms import Forward, load_form
from models.runtimes.packages import Package, load_package
from models.system.archive import ArchiveError
from models.system.memory_files import named_file
from models.system.resources import resident_bytes
from models.tensors import Dimension
from tests.artifacts import PICTURE, SHIFT, small_answer, small_batch, small_variant
from tests.e2e.forking import run
from tests.unit.export import definitions
from tests.unit.models.manifests import spec

pytestmark = pytest.mark.timeout(900)  # a compiler, on a machine that is busy
CPU = torch.device("cpu")


def call(form: Forward, size: int = 5) -> Any:
    """Its answer to a batch of `Small`'s inputs."""
    batch = small_batch(size)
    return form(torch.from_numpy(batch["picture"]), torch.from_numpy(batch["shift"]))[0].numpy()


@pytest.fixture
def package() -> bytes:
    """A compiled package for `Small`."""
    return small_variant("compiled").data


class TestCompiled:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 200])
    def test_answers_match_eager_at_every_batch_size(self, package: bytes, size: int) -> None:
        form = load_form([VariantFile.of(package)], "aotinductor", [PICTURE, SHIFT], CPU)
        wanted = small_answer(small_batch(size))["y"]
        np.testing.assert_allclose(call(form, size), wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "same",
        [
            lambda tensor: tensor.transpose(2, 3).contiguous().transpose(2, 3),
            lambda tensor: torch.stack([tensor * 9, tensor], dim=-1)[..., 1],
            # One float further than where an allocation begins: nothing is aligned.
            lambda tensor: torch.cat([torch.zeros(1), tensor.flatten()])[1:].view(tensor.shape),
        ],
        ids=["transposed", "strided", "unaligned"],
    )
    def test_memory_layout_of_inputs_does_not_matter(
        self, package: bytes, same: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        form = load_form([VariantFile.of(package)], "aotinductor", [PICTURE, SHIFT], CPU)
        batch = small_batch(6)
        picture, shift = (torch.from_numpy(batch[name]) for name in ("picture", "shift"))
        assert torch.equal(same(picture), picture)
        made = form(same(picture), shift)
        torch.testing.assert_close(made[0], form(picture, shift)[0], rtol=0, atol=0)

    def test_two_threads_share_a_package(self, package: bytes, tmp_path: Path) -> None:
        """In its own process, because threads that deadlock with the GIL stop all of it."""
        (tmp_path / "compiled.pt2").write_bytes(package)
        done = run("-c", TWO_THREADS, tmp_path / "compiled.pt2")
        assert (done.stdout, done.returncode) == ("right\nright\n", 0), done.stderr


# Tensors that are freed inside the package, and threads that take turns as often as they can.
TWO_THREADS = """
import pathlib, sys, threading, torch
from models.runtimes.forms import load_form
from models.runtimes.base import VariantFile
from models.tensors import TensorSpec

CPU = torch.device("cpu")
DATA = pathlib.Path(sys.argv[1]).read_bytes()
INPUTS = [
    TensorSpec(name="picture", dtype="float32", shape=(-1, 1, 4, 4)),
    TensorSpec(name="shift", dtype="float32", shape=(-1, -1)),
]

def work(size):
    form = load_form([VariantFile.of(DATA)], "aotinductor", INPUTS, CPU)
    picture, shift = torch.rand(size, 1, 4, 4).transpose(2, 3), torch.rand(size, 3)
    alone = form(picture, shift)[0]
    together.wait()
    same = all(torch.equal(form(picture, shift)[0], alone) for _ in range(300))
    sys.stdout.write(("right" if same else "wrong") + chr(10))  # print() writes twice

together = threading.Barrier(2)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


class Recorder(Package):
    """Stands where a package does, which takes anything without a word."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """See `Package`."""
        self.calls += 1
        assert all(tensor.is_contiguous() for tensor in tensors)
        return tensors


class TestCompiledRefusals:
    a = spec("a", shape=(-1, 2))
    b = spec("b", "int64", shape=(-1, 3, -1)).model_copy(
        update={"dimensions": (Dimension(most=4),)}
    )

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ((torch.ones(1, 2),), "1 inputs given, but 2 are expected"),
            (
                (torch.ones(1, 2).double(), torch.ones(1, 3, 1).long()),
                "input 'a' is torch.float64[1, 2], but the package was compiled for float32[-1, 2]",
            ),
            ((torch.ones(1, 2), torch.ones(1, 3, 1)), "input 'b' is torch.float32[1, 3, 1]"),
            ((torch.ones(1, 3), torch.ones(1, 3, 1).long()), "input 'a' is torch.float32[1, 3]"),
            ((torch.ones(()), torch.ones(1, 3, 1).long()), "input 'a' is torch.float32[]"),
            ((torch.ones(1, 2), torch.ones(1, 3, 5).long()), "input 'b' is torch.int64[1, 3, 5]"),
            ((torch.ones(1, 2), torch.ones(1, 3, 0).long()), "input 'b' is torch.int64[1, 3, 0]"),
            ((torch.ones(2, 2), torch.ones(3, 3, 1).long()), "compiled for int64[-1, 3, -1] and a"),
            ((torch.ones(0, 2), torch.ones(0, 3, 1).long()), "input 'a' is torch.float32[0, 2]"),
        ],
    )
    def test_unsupported_inputs_never_reach_the_package(
        self, tensors: tuple[torch.Tensor, ...], message: str
    ) -> None:
        loader = Recorder()
        with pytest.raises(ValueError, match=re.escape(message)):
            forms.CompiledForm(loader, [self.a, self.b])(*tensors)
        assert loader.calls == 0

    @pytest.mark.parametrize(("size", "free"), [(1, 1), (1, 4), (7, 3)])
    def test_supported_inputs_reach_the_package(self, size: int, free: int) -> None:
        loader = Recorder()
        given = (torch.ones(2, size).T, torch.ones(size, 3, free).long())
        made = forms.CompiledForm(loader, [self.a, self.b])(*given)
        assert loader.calls == 1
        assert all(torch.equal(one, other) for one, other in zip(made, given, strict=True))

    def test_scalar_is_not_a_batch_of_scalars(self) -> None:
        loader = Recorder()
        form = forms.CompiledForm(loader, [spec("x", shape=(-1,))])
        with pytest.raises(ValueError, match=re.escape("input 'x' is torch.float32[]")):
            form(torch.ones(()))
        assert form(torch.ones(3))[0].shape == (3,)


class TestPackages:
    @pytest.fixture(autouse=True)
    def _nothing_is_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packages, "_LIBRARIES", {})
        monkeypatch.setattr(packages, "_PACKAGES", SharedModels())

    def test_loading_leaves_nothing_in_the_temporary_folder(
        self, package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.delattr(os, "memfd_create", raising=False)
        form = load_form([VariantFile.of(package)], "aotinductor", [PICTURE, SHIFT], CPU)
        wanted = small_answer(small_batch(5))["y"]
        np.testing.assert_allclose(call(form), wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
            load_package(VariantFile.of(changed(package, library=b"no library")), CPU)
        assert list(tmp_path.iterdir()) == []

    def test_the_temporary_folder_replaces_memory_files(
        self, package: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
        form = load_form([VariantFile.of(package)], "aotinductor", [PICTURE, SHIFT], CPU)
        assert len(call(form)) == 5

    def test_a_damaged_archive_is_refused(self, package: bytes) -> None:
        """Its directory is whole; a byte of the library is not."""
        at = package.index(b"\x7fELF")
        with pytest.raises(ArchiveError, match="the compiled package is damaged: Bad CRC-32"):
            load_package(VariantFile.of(package[: at + 100] + b"?!" + package[at + 102 :]), CPU)

    def test_weights_of_another_size_are_refused(self, package: bytes) -> None:
        """The library would read beyond their end."""
        with zipfile.ZipFile(io.BytesIO(package)) as whole:
            (name,) = (name for name in whole.namelist() if name.endswith("_weights.blob"))
            size = whole.getinfo(name).file_size
        for content in (b"", bytes(size - 1), bytes(size + 1)):
            message = f"has {len(content):,} bytes of weights, its code needs {size:,}"
            with pytest.raises(RuntimeError, match=message):
                load_package(VariantFile.of(changed(package, files={name: content})), CPU)

    @pytest.mark.parametrize(
        ("library", "more", "why"),
        [
            (None, (), "contains no library"),
            (b"\x7fELF", (".json",), "calls operators that have no C interface"),
        ],
    )
    def test_a_package_that_cannot_run_is_refused(
        self, package: bytes, library: bytes | None, more: Sequence[str], why: str
    ) -> None:
        with pytest.raises(RuntimeError, match=why):
            load_package(VariantFile.of(changed(package, library=library, more=more)), CPU)

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
    def test_libraries_that_cannot_be_mapped_leave_no_descriptor(self, package: bytes) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
                load_package(VariantFile.of(changed(package, library=b"no library")), CPU)
        assert len(os.listdir("/proc/self/fd")) == before


def changed(
    package: bytes,
    *,
    library: bytes | None = b"",
    more: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> bytes:
    """The package with another library or other files, or without a library, and files beside it.

    An empty library means the package's own.
    """
    copied = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as whole, zipfile.ZipFile(copied, "w") as copy:
        for name in whole.namelist():
            content = (files or {}).get(name, whole.read(name))
            if not name.endswith(".so"):
                copy.writestr(name, content)
            elif library is not None:
                copy.writestr(name, library or content)
                for suffix in more:
                    copy.writestr(name.removesuffix(".so") + suffix, "{}")
    return copied.getvalue()


class Wide(nn.Module):
    """42 MiB of weights: such memory is given back to the system when it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3328, 3328)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A package for `Wide`."""
    folder = tmp_path_factory.mktemp("wide")
    model = definitions.of_vectors(Wide, (3328,))
    AotInductor("cpu").make(definitions.subject(model), folder)
    return (folder / "compiled.pt2").read_bytes()


@pytest.mark.soak
@pytest.mark.skipif(resident_bytes() is None, reason="needs Linux's /proc")
def test_weights_are_freed_with_their_package(wide: bytes) -> None:
    copies = (VariantFile(f"copy {n}", lambda: named_file(wide)) for n in range(8))

    def used() -> Package:
        loaded = load_package(next(copies), CPU)
        loaded([torch.ones(1, 3328)])
        return loaded

    used()
    kept = used()
    before = resident_bytes()
    for _ in range(6):
        used()
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert after - before < 80e6  # two copies; six are 260 MB
    assert kept([torch.ones(1, 3328)])


def test_a_failure_inside_a_package_is_told(package: bytes) -> None:
    """Such shapes are refused before, by `Compiled`."""
    loaded = load_package(VariantFile.of(package), CPU)
    with pytest.raises(RuntimeError, match="convolution"):
        loaded([torch.ones(2, 3, 4, 4), torch.ones(2, 1)])
    assert loaded([torch.ones(2, 1, 4, 4), torch.ones(2, 1)])[0].shape == (2, 3)


@pytest.mark.soak
def test_other_threads_run_during_a_forward(wide: bytes) -> None:
    loaded, begun = load_package(VariantFile.of(wide), CPU), threading.Event()
    batch = torch.ones(1024, 3328)

    def run() -> None:
        begun.set()
        for _ in range(3):
            loaded([batch])

    thread = threading.Thread(target=run)
    turns = 0
    thread.start()
    begun.wait()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20
