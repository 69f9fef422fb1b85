"""A TorchScript file on one device, in the form that is fastest there for each batch size."""

from __future__ import annotations

import hashlib
import io
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from app.errors import ArtifactInvalid, DeviceLost, ModelError, ReplicaError
from app.types import Array, Arrays, Device
from models.manifest import Manifest

LOG = structlog.get_logger(__name__)
WARM_RUNS = 3  # TorchScript's profiling executor specialises on the second and third call
TIMED_ROUNDS = 9
TIMING_BUDGET_S = 0.5  # per batch: a large model gets fewer rounds, never fewer than one
WINS_BY = 0.95  # a form replaces the plain one where it takes less than this share of its time

Forward = Callable[..., Any]


class TorchScriptBackend:
    """One TorchScript variant; see `app.backends.base.Backend`.

    On the CPU it keeps two forms: the file as it is, and a fresh copy that went through
    `torch.jit.optimize_for_inference` (which changes its argument and cannot be saved). Warming up
    times both and picks one per bucket; they agree to about 1e-7, well within the golden tolerance.

    Args:
        file: the variant's file; what is loaded is checked against its digest.
        manifest: names, dtypes and order of inputs and outputs.
        device: where to run.
        cpu_threads: intra-op threads when the device is the CPU.
    """

    def __init__(self, file: Path, manifest: Manifest, device: Device, cpu_threads: int) -> None:
        self._file = file
        self._manifest = manifest
        self._device = torch.device(str(device))
        self._cpu_threads = cpu_threads
        self._plain: Forward | None = None
        self._optimized: Forward | None = None
        self._choice: list[tuple[int, Forward]] = []  # (largest batch size, form), ascending

    def load(self) -> None:
        """See `Backend`."""
        if self._device.type == "cpu":
            torch.set_num_threads(self._cpu_threads)  # per thread: this is the replica's
        data = self._verified_bytes()
        self._plain = self._read(data)
        if self._device.type == "cpu":
            self._optimized = self._optimize(data)

    def warm_up(self, batches: Sequence[Arrays]) -> None:
        """See `Backend`; also times the forms and keeps the faster one per batch size."""
        forms = [form for form in (self._plain, self._optimized) if form is not None]
        seconds: dict[int, list[float]] = {}
        for batch in batches:
            for form in forms:
                for _ in range(WARM_RUNS):
                    self._run_form(form, batch)
            total = seconds.setdefault(_size(batch), [0.0] * len(forms))
            for index, median in enumerate(self._time(forms, batch)):
                total[index] += median
        self._choice = []
        for size, total in sorted(seconds.items()):
            faster = len(forms) == 2 and total[1] < WINS_BY * total[0]
            self._choice.append((size, forms[1] if faster else forms[0]))
        optimized = [size for size, form in self._choice if form is self._optimized]
        LOG.info(
            "backend_warm",
            model=f"{self._manifest.model}/{self._manifest.version}",
            device=str(self._device),
            buckets=sorted(seconds),
            optimized_for_inference_at=optimized,
        )

    def run(self, inputs: Arrays) -> Arrays:
        """See `Backend`."""
        size = _size(inputs)
        form = next((form for limit, form in self._choice if size <= limit), None)
        if form is None:
            form = self._choice[-1][1] if self._choice else self._plain
        if form is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return self._run_form(form, inputs)

    def close(self) -> None:
        """See `Backend`."""
        self._plain = self._optimized = None
        self._choice = []
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _verified_bytes(self) -> bytes:
        """The file, checked once more: it may have changed since, as when a replica is rebuilt."""
        try:
            data = self._file.read_bytes()
        except OSError as error:
            raise ArtifactInvalid(f"{self._file.name} cannot be read: {error.strerror}") from error
        got, wanted = hashlib.sha256(data).hexdigest(), self._manifest.files[self._file.name].sha256
        if got != wanted:
            raise ArtifactInvalid(
                f"{self._file.name} has SHA-256 {got}, the manifest says {wanted}"
            )
        return data

    def _read(self, data: bytes) -> Any:
        try:
            load: Callable[..., Any] = torch.jit.load  # untyped in torch
            module = load(io.BytesIO(data), map_location=self._device)
        except torch.AcceleratorError as error:
            raise DeviceLost(str(error)) from error
        except torch.OutOfMemoryError as error:
            raise ReplicaError(f"the model does not fit on {self._device}: {error}") from error
        except (RuntimeError, ValueError, OSError) as error:
            LOG.error("file_not_loaded", file=self._file.name, error=str(error))
            raise ArtifactInvalid(
                f"{self._file.name} is not a TorchScript file that this torch reads"
            ) from error
        module.eval()
        return module

    def _optimize(self, data: bytes) -> Forward | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it tells of each pass that does not apply
                optimized: Forward = torch.jit.optimize_for_inference(self._read(data))
                return optimized
        except RuntimeError as error:
            LOG.info("optimize_for_inference_refused", file=self._file.name, error=str(error))
            return None

    def _run_form(self, form: Forward, inputs: Arrays) -> Arrays:
        try:
            with torch.inference_mode():
                tensors = [
                    _tensor(inputs[spec.name]).to(self._device) for spec in self._manifest.inputs
                ]
                made = form(*tensors)
                return self._named(made)
        except torch.OutOfMemoryError as error:  # a smaller part of the batch may fit
            raise ModelError(f"out of memory on {self._device}") from error
        except torch.AcceleratorError as error:
            raise DeviceLost(str(error)) from error
        except (torch.jit.Error, RuntimeError, ValueError, TypeError, MemoryError) as error:
            raise ModelError(str(error)) from error

    def _named(self, made: object) -> Arrays:
        outputs = made if isinstance(made, tuple | list) else (made,)
        specs = self._manifest.outputs
        if len(outputs) != len(specs):
            raise ModelError(
                f"the model gave {len(outputs)} outputs, the manifest says {len(specs)}"
            )
        named = {}
        for spec, output in zip(specs, outputs, strict=True):
            if not isinstance(output, torch.Tensor):
                raise ModelError(f"output {spec.name!r} is no tensor but {type(output).__name__}")
            array = output.cpu().numpy()
            if array.dtype != np.dtype(spec.dtype):
                raise ModelError(f"output {spec.name!r} is {array.dtype}, not {spec.dtype}")
            named[spec.name] = array
        return named

    def _time(self, forms: Sequence[Forward], batch: Arrays) -> list[float]:
        """Median seconds of each form on a batch, in interleaved rounds."""
        if len(forms) < 2:
            return [0.0] * len(forms)
        taken: list[list[float]] = [[] for _ in forms]
        started = time.perf_counter()
        for _ in range(TIMED_ROUNDS):
            for index, form in enumerate(forms):
                begin = time.perf_counter()
                self._run_form(form, batch)
                taken[index].append(time.perf_counter() - begin)
            if time.perf_counter() - started > TIMING_BUDGET_S:
                break
        return [statistics.median(each) for each in taken]


def _size(batch: Arrays) -> int:
    return int(next(iter(batch.values())).shape[0])


def _tensor(array: Array) -> torch.Tensor:
    """Shares memory; torch only reads it, but warns of arrays that are marked read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
