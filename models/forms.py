"""How a variant's file becomes something to call: the same code proves it and serves it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from models.archive import check_archive
from models.manifest import NativeCode, Variant
from models.processor import DeviceKind, cpu_flags, machine, mapped_files, resident_bytes
from models.tensors import TensorSpec

Forward: TypeAlias = Callable[..., Any]  # one tensor per input -> a tensor, or a sequence of them
# Where torch unpacks a package, below TMPDIR: the folder, then what is in every package.
UNPACKED = re.compile(r"(.+/aotinductor_\w{6})/[^/]+/data/aotinductor/model/[^/]+\.so")
_LOADING = threading.Lock()
_HUSH = threading.Lock()  # two threads that restore the filters of warnings could leave them off


class WrongMachine(Exception):
    """A file of machine code that this machine, or this torch, must not run."""


def kinds_here() -> tuple[DeviceKind, ...]:
    """The kinds of device at hand."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def load_torchscript(data: bytes, device: torch.device, *, optimized: bool = False) -> Forward:
    """A TorchScript file as a callable on a device.

    Args:
        data: the file.
        device: where its weights go.
        optimized: apply `torch.jit.optimize_for_inference`; on the CPU only.

    Raises:
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if torch cannot read it, or refuses to optimize it.
    """
    check_archive(io.BytesIO(data), "the TorchScript file")
    load: Callable[..., Any] = torch.jit.load  # untyped in torch
    module = load(io.BytesIO(data), map_location=device)
    module.eval()
    if not optimized:
        return module  # type: ignore[no-any-return]
    with _hushed():  # it tells of each pass that does not apply
        # It changes its argument in place, and what it makes cannot be saved: hence at load.
        made: Forward = torch.jit.optimize_for_inference(module)
        return made


def hush_quantized_tensors() -> None:
    """Say once, to nobody, that quantized tensors are deprecated.

    Torch 2.13 tells so once a process, on stderr where an int8 file is loaded: amid structured
    logs. Called from Python it is a warning, which can be caught.
    """
    with _hushed():
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)


class Package:
    """A loaded package, for one thread at a time.

    Whoever waits for its runner waits with the GIL, and whoever has it may let go of the GIL and
    want it back: two threads inside a package can stop the process for ever. Here they wait outside
    of it, without the GIL.

    Args:
        loader: torch's, from `load_package`.
    """

    def __init__(self, loader: Any) -> None:
        self._run = loader.boxed_run
        self._lock = threading.Lock()

    def boxed_run(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One forward; it takes the tensors out of the list."""
        with self._lock:
            made: Sequence[torch.Tensor] = self._run(tensors)
            return made


class Packages:
    """The AOTInductor packages of a process: each is loaded once and stays.

    Loading a package again leaks its mappings (about half a megabyte in torch 2.13), so a package
    is kept even when nobody uses it any more. Loading needs a temporary folder that files may be
    executed from: a package is machine code, which torch unpacks there.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], Package] = {}
        self._lock = threading.Lock()

    def load(self, data: bytes, device: torch.device) -> Package:
        """The package on a device, which several threads may share.

        Args:
            data: the `.pt2` file; what has the same bytes is loaded once.
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
    """Load a package anew, whether or not it was loaded before.

    torch._inductor.aoti_load_package ends in the same loader, but imports the whole compiler on the
    way (2 s, 80 MB) and adds 18 us to each call.
    """
    check_archive(io.BytesIO(data), "the compiled package")
    index = -1 if device.index is None else device.index
    with _LOADING, tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        file.write(data)
        file.flush()
        others = _unpacked()
        # path, name inside the package, single-threaded, runners, device
        loader = torch._C._aoti.AOTIModelPackageLoader(file.name, "model", False, 1, index)
        if device.type == "cpu":  # kernels for CUDA are read from there at their first launch
            # Torch removes it together with the loader, so never where loaders live as long as the
            # process: each start of a server would leave code and weights behind on the disk.
            for folder in _unpacked() - others:
                shutil.rmtree(folder, ignore_errors=True)
    return loader


class Compiled:
    """A loaded package that looks at what it is given: the package itself would not.

    Args:
        loader: from `Packages.load`, or from `load_package` where one thread alone uses it.
        inputs: what the package was compiled for.
    """

    def __init__(self, loader: Any, inputs: Sequence[TensorSpec]) -> None:
        self._run = loader.boxed_run
        self._inputs = [
            (spec, getattr(torch, spec.dtype), spec.item_shape if spec.is_fixed else None)
            for spec in inputs
        ]

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """One forward.

        Raises:
            ValueError: if a tensor is not what the package was compiled for.
        """
        if len(tensors) != len(self._inputs):
            raise ValueError(f"{len(tensors)} inputs given, {len(self._inputs)} are taken")
        size = tensors[0].shape[:1]
        for (spec, dtype, fixed), tensor in zip(self._inputs, tensors, strict=True):
            shape = tensor.shape
            item = shape[1:]
            fits = item == fixed if fixed is not None else spec.takes(tuple(item))
            if not (fits and shape and shape[:1] == size and tensor.dtype == dtype) or 0 in shape:
                raise ValueError(
                    f"input {spec.name!r} is {tensor.dtype}{list(shape)}, the package was compiled "
                    f"for {spec.dtype}{list(spec.shape)} and a batch of {list(size)}"
                )
        made: Sequence[torch.Tensor] = self._run([tensor.contiguous() for tensor in tensors])
        return made


def _unpacked() -> set[str]:
    """Folders of packages whose code is mapped into this process."""
    return {found[1] for path in mapped_files() if (found := UNPACKED.fullmatch(path))}


def load_form(
    data: bytes,
    file_format: Literal["torchscript", "aotinductor"],
    inputs: Sequence[TensorSpec],
    device: torch.device,
    *,
    optimized: bool = False,
    packages: Packages | None = None,
) -> Forward:
    """Any variant's file as a callable on a device.

    Args:
        data: the file.
        file_format: what it is.
        inputs: what the model takes.
        device: where it runs.
        optimized: apply `optimize_for_inference` to a TorchScript file.
        packages: where compiled packages are kept; None: load it anew.

    Raises:
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if torch cannot read it.
    """
    if file_format == "torchscript":
        return load_torchscript(data, device, optimized=optimized)
    loader = packages.load(data, device) if packages else load_package(data, device)
    return Compiled(loader, inputs)


def growth_per_reload(data: bytes, device: torch.device, times: int = 8) -> int | None:
    """Bytes of resident memory that each further load of a package keeps; None where unknown."""
    load_package(data, device)
    before = resident_bytes()
    for _ in range(times):
        load_package(data, device)
    after = resident_bytes()
    return None if before is None or after is None else max(0, after - before) // times


def check_runs_here(variant: Variant, device: torch.device, torch_version: str) -> None:
    """Whether this machine may run a variant; machine code is made for one family of processors.

    Raises:
        WrongMachine: saying what is needed and what is here.
    """
    if device.type not in variant.device_kinds:
        kinds = ", ".join(variant.device_kinds)
        raise WrongMachine(f"{variant.file} runs on {kinds}, not on {device}")
    if variant.native is not None:
        _check_native(variant.file, variant.native, device)
        if base(variant.torch_version) != base(torch_version):
            raise WrongMachine(
                f"{variant.file} was compiled by torch {variant.torch_version} and runs with that "
                f"only; here is {torch_version}"
            )


def base(version: str) -> str:
    """A torch version without its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


def named_outputs(made: object, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray[Any, Any]]:
    """What a forward gave, as host arrays by name.

    Raises:
        ValueError: if it is not what the specs say.
    """
    outputs = made if isinstance(made, tuple | list) else (made,)
    if len(outputs) != len(specs):
        raise ValueError(f"the model gave {len(outputs)} outputs, {len(specs)} are declared")
    named = {}
    for spec, output in zip(specs, outputs, strict=True):
        if not isinstance(output, torch.Tensor):
            raise ValueError(f"output {spec.name!r} is no tensor but {type(output).__name__}")
        if output.dtype != getattr(torch, spec.dtype):
            raise ValueError(f"output {spec.name!r} is {output.dtype}, not {spec.dtype}")
        named[spec.name] = output.cpu().numpy()
    return named


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    with _HUSH, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_native(file: str, native: NativeCode, device: torch.device) -> None:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        here = frozenset([f"sm_{major}{minor}"])
    else:
        here = cpu_flags()
    missing = [need for need in native.requires if need not in here]
    if native.architecture != machine() or missing:
        lacks = f", without {', '.join(missing)}" if missing else ""
        raise WrongMachine(
            f"{file} is machine code for {native.architecture} with {', '.join(native.requires)}; "
            f"{device} here is {machine()}{lacks}"
        )
