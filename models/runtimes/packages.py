"""Loads and runs AOTInductor packages, compiled models in a `.pt2`, through their C interface.

Torch's own loader holds the GIL while a package runs, and never frees its weights. The interface is
that of torch/csrc/inductor/aoti_runtime/interface.h in torch's wheel.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int32, c_size_t, c_void_p
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from models.runtimes.base import SharedModels, VariantFile
from models.system.archive import check_archive, read_entries
from models.system.resources import usable_cores

CODE, WEIGHTS = ".so", "_weights.blob"
KERNELS = (".cubin", ".hsaco")
_LIBRARIES: dict[str, ctypes.CDLL] = {}  # by digest: a library in C++ cannot be unloaded
_LIBRARIES_LOCK = threading.Lock()


class _Code:
    """The functions of a package's library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        size, handles = POINTER(c_size_t), (POINTER(c_void_p), c_size_t)
        self.create = self._function("CreateWithDevice", *handles, c_char_p, c_char_p)
        self.delete = self._function("Delete", c_void_p)
        self.count_inputs = self._function("GetNumInputs", c_void_p, size)
        self.count_outputs = self._function("GetNumOutputs", c_void_p, size)
        self.run = self._function("Run", c_void_p, *handles, *handles, c_void_p, c_void_p)
        self.count_constants = self._function("GetNumConstants", c_void_p, size)
        self.bytes_of = self._function("GetConstantDataSize", c_void_p, c_size_t, size)
        self.is_computed = self._function(
            "GetConstantFromFolded", c_void_p, c_size_t, POINTER(c_bool)
        )
        self.take_weights = self._declare(
            "AOTInductorModelUpdateConstantsFromBlob", c_void_p, c_char_p
        )
        self._last_error: Callable[..., int] | None = None
        if hasattr(library, "AOTInductorGetLastError"):  # torch 2.11 writes it to stderr
            self._last_error = self._declare("AOTInductorGetLastError", POINTER(c_char_p))

    def _function(self, name: str, *takes: Any) -> Callable[..., int]:
        return self._declare(f"AOTInductorModelContainer{name}", *takes)

    def _declare(self, name: str, *takes: Any) -> Callable[..., int]:
        try:
            function: Any = getattr(self._library, name)
        except AttributeError as error:
            raise RuntimeError(f"the package has no function {name}") from error
        function.argtypes, function.restype = takes, c_int32
        return function  # type: ignore[no-any-return]

    def check(self, status: int) -> None:
        """Raise RuntimeError with the reason if a function has failed."""
        if status:
            why = c_char_p()
            if self._last_error is not None:
                self._last_error(byref(why))
            raise RuntimeError((why.value or b"unknown error").decode(errors="replace"))


class Package:
    """A loaded package, whose memory is freed with this object.

    Without the GIL, it runs in as many threads at once as the machine has cores; more wait.

    Args:
        weights: its weights, if they are not in the library.
        folder: with the kernels for a GPU.
    """

    def __init__(
        self,
        code: _Code,
        weights: bytes | None,
        device: torch.device,
        folder: tempfile.TemporaryDirectory[str] | None,
    ) -> None:
        self._code = code
        self._folder = folder
        self._stream = _stream_on(device)
        self._container = container = c_void_p()
        kernels = None if folder is None else folder.name.encode()
        runners = usable_cores()
        code.check(code.create(byref(container), runners, str(device).encode(), kernels))
        # Not at the end of the process, when a thread may still run it.
        weakref.finalize(self, code.delete, container.value).atexit = False
        if weights is not None:
            _check_weights(code, container, len(weights))
            code.check(code.take_weights(container, weights))  # copied
        self._inputs, self._outputs = _array_types(code, container)

    def __call__(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one forward.

        Args:
            tensors: contiguous, on the device, of shapes and dtypes for which it was compiled.

        Raises:
            RuntimeError: if it fails.
        """
        # Handles are owned by the callee; see torch/csrc/inductor/aoti_runner/pybind.cpp.
        capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors)
        input_handles = self._inputs(*[_pointer_of(each, None) for each in capsules])
        output_handles = self._outputs()
        self._code.check(
            self._code.run(
                self._container,
                input_handles,
                len(input_handles),
                output_handles,
                len(output_handles),
                self._stream(),
                None,
            )
        )
        outputs: Sequence[torch.Tensor] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(
            [_capsule_of(each, None, None) for each in output_handles]
        )
        return outputs


_PACKAGES: SharedModels[Package] = SharedModels()


def load_package(file: VariantFile, device: torch.device) -> Package:
    """Load a package; equal ones in use on a device are one.

    Raises:
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if it cannot be loaded.
        OSError: if its library cannot be mapped, or its kernels cannot be written.
    """
    return _PACKAGES.get(file, str(device), lambda path: _load(path, device))


def _load(path: str, device: torch.device) -> Package:
    with open(path, "rb") as file:
        names = check_archive(file, "the compiled package")
        library = next((name for name in names if name.endswith(CODE)), None)
        if library is None:
            raise RuntimeError("the package contains no library")
        if library.removesuffix(CODE) + ".json" in names:
            raise RuntimeError("the package calls operators that have no C interface")
        kernels = [name for name in names if name.endswith(KERNELS) and device.type != "cpu"]
        blobs = [name for name in names if name.endswith(WEIGHTS)]
        entries = [library, *blobs[:1], *kernels]
        contents = read_entries(file, "the compiled package", entries)
        code = _Code(_map_once(next(contents)))
        weights = next(contents) if blobs else None
        folder = _write_kernels(kernels, contents) if kernels else None
        return Package(code, weights, device, folder)


def _write_kernels(
    names: Sequence[str], files: Iterator[bytes]
) -> tempfile.TemporaryDirectory[str]:
    """Write files to one folder, from which each kernel is read at its first launch."""
    folder = tempfile.TemporaryDirectory(prefix="torchlane-kernels-", ignore_cleanup_errors=True)
    for name, content in zip(names, files, strict=True):
        (Path(folder.name) / PurePosixPath(name).name).write_bytes(content)
    return folder


def _map_once(library: bytes) -> ctypes.CDLL:
    """Map a library into this process, once."""
    digest = hashlib.sha256(library).hexdigest()
    with _LIBRARIES_LOCK:
        if digest not in _LIBRARIES:
            _LIBRARIES[digest] = _map_library(library)
        return _LIBRARIES[digest]


def _map_library(library: bytes) -> ctypes.CDLL:
    """Map a library from memory, or from TMPDIR where the system has or allows no such files."""
    try:
        descriptor = os.memfd_create("compiled")
    except (AttributeError, OSError):
        with tempfile.NamedTemporaryFile(suffix=CODE) as file:
            file.write(library)
            file.flush()
            return ctypes.CDLL(file.name)
    # The descriptor stays open: the system takes another library of the same name for this one.
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(library)
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except BaseException:
        os.close(descriptor)
        raise


def _check_weights(code: _Code, container: c_void_p, size: int) -> None:
    """Check that the weights are as large as the library expects, which reads them unchecked."""
    count, needed_bytes = c_size_t(), 0
    code.check(code.count_constants(container, byref(count)))
    for index in range(count.value):
        nbytes, is_computed = c_size_t(), c_bool()
        code.check(code.bytes_of(container, index, byref(nbytes)))
        code.check(code.is_computed(container, index, byref(is_computed)))
        needed_bytes += 0 if is_computed.value else nbytes.value
    if size != needed_bytes:
        raise RuntimeError(
            f"the package has {size:,} bytes of weights, its code needs {needed_bytes:,}"
        )


def _array_types(code: _Code, container: c_void_p) -> tuple[Any, Any]:
    """Return the types of arrays of all inputs and of all outputs."""
    inputs, outputs = c_size_t(), c_size_t()
    code.check(code.count_inputs(container, byref(inputs)))
    code.check(code.count_outputs(container, byref(outputs)))
    return c_void_p * inputs.value, c_void_p * outputs.value


def _stream_on(device: torch.device) -> Callable[[], int | None]:
    """Return a function that returns the current thread's stream on a device."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.cuda.current_stream(device).cuda_stream


_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.py_object, c_char_p), c_void_p
_capsule_of: Any = ctypes.pythonapi.PyCapsule_New
_capsule_of.argtypes, _capsule_of.restype = (c_void_p, c_char_p, c_void_p), ctypes.py_object
