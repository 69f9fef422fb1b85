"""Loads AOTInductor packages: compiled models in a `.pt2`, which torch unpacks and maps."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from models.archive import check_archive
from models.processor import mapped_files
from models.resources import resident_bytes

# Where torch unpacks a package below TMPDIR: the folder, then the path within the package.
UNPACKED = re.compile(r"(.+/aotinductor_\w{6})/[^/]+/data/aotinductor/model/[^/]+\.so")
_LOADING = threading.Lock()


class Package:
    """A loaded package for one thread at a time.

    A thread that waits for the runner inside a package holds the GIL, while the thread that has the
    runner may release the GIL and need it again: this can deadlock the process. Here threads wait
    outside of the package, without the GIL.

    Args:
        loader: from `load_package`.
    """

    def __init__(self, loader: Any) -> None:
        self._run = loader.boxed_run
        self._lock = threading.Lock()

    def boxed_run(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one forward; this removes the tensors from the list."""
        with self._lock:
            made: Sequence[torch.Tensor] = self._run(tensors)
            return made


class Packages:
    """The AOTInductor packages of a process; each is loaded once and stays.

    Loading a package again leaks its previous mapping, weights included (torch 2.13), so a package
    is kept even when it is no longer used. Loading needs a temporary folder that allows execution:
    torch unpacks the package's code there.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], Package] = {}
        self._lock = threading.Lock()

    def load(self, data: bytes, device: torch.device) -> Package:
        """Return the package on a device; several threads may share it.

        Args:
            data: the `.pt2` file; equal bytes are loaded once.
            device: where it runs.

        Raises:
            ArchiveError: if the file must not be unpacked.
            RuntimeError: if torch cannot load it.
        """
        with self._lock:
            key = (hashlib.sha256(data).hexdigest(), str(device))
            if key not in self._loaded:
                self._loaded[key] = Package(load_package(data, device))
            return self._loaded[key]


def load_package(data: bytes, device: torch.device) -> Any:
    """Load a package, even if it was loaded before.

    torch._inductor.aoti_load_package uses the same loader, but first imports the whole compiler
    (2 s, 80 MB), and adds 18 us to each call.
    """
    names = check_archive(io.BytesIO(data), "the compiled package")
    index = -1 if device.index is None else device.index
    with _LOADING, tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        file.write(data)
        file.flush()
        others, folders = _unpacked(), _folders()
        try:
            # path, name inside the package, single-threaded, runners, device
            loader = torch._C._aoti.AOTIModelPackageLoader(file.name, "model", False, 1, index)
        except RuntimeError as error:
            _remove_unpacked(_folders() - folders, names, str(error))
            raise
        if device.type == "cpu":  # kernels for CUDA are read from there at their first launch
            # Torch removes the folder with the loader, which lives as long as the process here:
            # each start of a server would leave code and weights on the disk.
            for folder in _unpacked() - others:
                shutil.rmtree(folder, ignore_errors=True)
    return loader


def growth_per_reload(data: bytes, device: torch.device, times: int = 8) -> int | None:
    """Measure the bytes of memory that each further load of a package keeps; None: unknown."""
    load_package(data, device)
    before = resident_bytes()
    for _ in range(times):
        load_package(data, device)
    after = resident_bytes()
    return None if before is None or after is None else max(0, after - before) // times


def _folders() -> set[Path]:
    """Return the folders of unpacked packages, of this process and others."""
    return set(Path(tempfile.gettempdir()).glob("aotinductor_??????"))


def _remove_unpacked(folders: set[Path], names: Sequence[str], error: str) -> None:
    """Remove the folders that torch leaves behind when it cannot load a package.

    Args:
        folders: new ones, of which some may belong to other processes.
        names: of the files in the package.
        error: torch's message; if the disk is full, it names the file that could not be unpacked.
    """
    library = next((name for name in names if name.endswith(".so")), None)
    for folder in folders:
        has_library = library is not None and (folder / library).exists()
        if has_library or f"{folder}{os.sep}" in error:
            shutil.rmtree(folder, ignore_errors=True)


def _unpacked() -> set[str]:
    """Return the folders of packages whose code is mapped into this process."""
    return {found[1] for path in mapped_files() if (found := UNPACKED.fullmatch(path))}
