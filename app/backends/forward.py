"""Runs one form of a variant: loads its file, runs batches, and classifies errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog
import torch

from app.backends.base import Backend, Between, LaunchedBatch, WarmUp, size_of
from app.backends.cuda import streams_of
from app.backends.faults import NO_HOST_MEMORY, faults_of
from app.backends.golden import QUICK_S
from app.backends.growth import SLOW_S
from app.backends.lane import DeviceStreams, Lane
from app.backends.memory import check_fits, peak_of
from app.backends.profiler import batch_range
from app.backends.shape_caches import CACHE_BYTES, has_free_sizes
from app.errors import ArtifactInvalid, DeviceLost, ReplicaError, VariantUnusable
from app.types import Arrays, Device, ServedStep, Serving
from models.integrity import IntegrityError, copy_verified
from models.manifest import Manifest
from models.plan import Form
from models.runtimes.base import VariantFile
from models.runtimes.forms import (
    RUNTIMES,
    Forward,
    WrongMachine,
    check_runs_here,
    input_tensors,
    load_form,
    named_outputs,
)
from models.system.archive import ArchiveError
from models.system.extras import NotInstalled
from models.system.memory_files import memory_file
from models.timing import WARM_RUNS, nothing

LOG = structlog.get_logger(__name__)


class FormBackend:
    """One form of one variant on one device; see `app.backends.base.Backend`.

    Args:
        folder: the artifact's folder; files are checked against their digests.
        form: the variant, and whether it is optimized at load.
        device: where to run.
        replicas: how many serve the model.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, form: Form, device: Device, replicas: int = 1
    ) -> None:
        self.manifest = manifest
        self.form = form
        self.variant = manifest.variants[form.variant]
        self.folder = folder
        self.device = torch.device(str(device))
        self._replicas = replicas
        self._forward: Forward | None = None
        self._lane: Lane | None = None
        self._item_s: dict[tuple[tuple[int, ...], ...], float] = {}  # of warm-up, by shapes

    def load(self) -> None:
        self._forward = self.open_files(self.variant.files, self.device)

    def open_files(self, names: Sequence[str], device: torch.device) -> Forward:
        """Load files of the variant onto a device.

        Raises:
            ArtifactInvalid, DoesNotFit, ReplicaError, VariantUnusable: see `Backend.load`.
        """
        try:
            check_runs_here(self.variant, device, torch.__version__)
            return load_form(
                [self._file(name, device) for name in names],
                self.variant.format,
                self.manifest.inputs,
                device,
                optimized=self.form.optimized,
                replicas=self._replicas,
                operators=self.variant.operators,
            )
        except torch.AcceleratorError as error:
            raise DeviceLost(str(error)) from error
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise ReplicaError(f"the model does not fit on {device}: {error}") from error
        except ArchiveError as error:
            raise ArtifactInvalid(f"{names[0]}: {error}") from error
        except IntegrityError as error:
            raise ArtifactInvalid(str(error)) from error
        except WrongMachine as error:
            raise VariantUnusable(str(error)) from error
        except NotInstalled as error:
            raise VariantUnusable(f"{names[0]}: {error}") from error
        except (RuntimeError, ValueError, OSError) as error:
            if NO_HOST_MEMORY in str(error):
                raise ReplicaError(f"the model does not fit on {device}: {error}") from error
            # Torch's messages contain paths and code, so they are only logged.
            LOG.error("form_not_loaded", file=names[0], form=str(self.form), error=str(error))
            raise self._unreadable(names[0]) from error

    def _file(self, name: str, device: torch.device) -> VariantFile:
        """One of the variant's files: a copy that was digested, if there is memory for it."""
        digest = self.manifest.files[name]

        @contextlib.contextmanager
        def provide() -> Iterator[str]:
            later = CACHE_BYTES if has_free_sizes(self.manifest) else 0
            peak = peak_of(self.variant.format, optimized=self.form.optimized)
            check_fits(name, digest.bytes, device, peak, later)
            with memory_file() as (file, path):
                copy_verified(self.folder, name, digest, file)
                file.flush()
                yield path

        return VariantFile(digest.sha256, provide)

    def _unreadable(self, name: str) -> ArtifactInvalid:
        """The error for a file that torch, or its runtime, cannot read."""
        if self.variant.format in RUNTIMES:
            return VariantUnusable(
                f"{name} could not be loaded by the installed release of "
                f"{RUNTIMES[self.variant.format]}"
            )
        if self.variant.format != "torchscript":
            return VariantUnusable(
                f"{name} could not be loaded, and the log has the reason; it needs memory files "
                "that allow execution, or a temporary folder (TMPDIR) that does"
            )
        if self.form.optimized:
            return VariantUnusable(f"{self.form}: torch cannot optimize {name} here")
        # Only the plain form shows whether the file itself is invalid.
        return ArtifactInvalid(
            f"{name} is not a TorchScript file that this version of torch can read"
        )

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> WarmUp:
        largest = 1
        # Only TorchScript specializes, on the second and third run.
        specializes = self.variant.format == "torchscript"
        for batch in batches:
            largest = size_of(batch)
            item = tuple(array.shape[1:] for array in batch.values())
            if not specializes and largest * self._item_s.get(item, 0.0) > SLOW_S:
                continue  # the replay runs it, and the preparation of a new size takes little of it
            for run in range(1, (WARM_RUNS if specializes else 1) + 1):
                between()
                began = time.perf_counter()
                self.run(batch)
                took_s = time.perf_counter() - began
                self._item_s[item] = took_s / largest
                if run > 1 and took_s > QUICK_S:
                    break  # enough of a slow forward: the replay runs it again
        return WarmUp(largest)

    def shares(self, other: Backend) -> bool:
        if self.works_by_itself or not isinstance(other, FormBackend):
            return False  # each replica has streams and memory of its own
        return self._forward is not None and self._forward == other._forward

    def run(self, inputs: Arrays) -> Arrays:
        if self.works_by_itself:
            return self._launching().launch(inputs).outputs()
        return run_forward(self._get_forward(), inputs, self.manifest, self.device)

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        return self._launching().stage(shapes)

    def launch(self, inputs: Arrays) -> LaunchedBatch:
        return self._launching().launch(inputs)

    def serving(self) -> Serving:
        launches = self.works_by_itself
        steps = (ServedStep(None, str(self.form)),)
        return Serving(steps, launches=launches, prefetches=launches)

    @property
    def works_by_itself(self) -> bool:
        """Whether the device computes while its thread does something else."""
        return self.device.type == "cuda"

    def streams(self) -> DeviceStreams:
        """The streams of an asynchronous device for the calling thread."""
        return streams_of(self.device)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._forward = self._lane = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _get_forward(self) -> Forward:
        if self._forward is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return self._forward

    def _launching(self) -> Lane:
        """The lane, created in the thread that uses it."""
        if not self.works_by_itself:
            raise ReplicaError(f"bug: {self.device} cannot launch batches, it only runs them")
        if self._lane is None:
            self._lane = Lane(self._get_forward(), self.manifest, self.streams(), self.device)
        return self._lane


def run_forward(
    forward: Forward, inputs: Arrays, manifest: Manifest, device: torch.device
) -> Arrays:
    """Run a batch.

    Args:
        forward: a loaded form.
        inputs: input name -> array [n, ...]; never modified.
        manifest: names, dtypes and order of inputs and outputs.
        device: where the form is loaded.

    Returns:
        output name -> array [n, ...].

    Raises:
        ModelError, DeviceLost: see `faults_of`.
    """
    named = batch_range(manifest.model, manifest.version, size_of(inputs))
    with faults_of(device), torch.inference_mode(), named:
        tensors = [each.to(device) for each in input_tensors(inputs, manifest.inputs)]
        return named_outputs(forward(*tensors), manifest.outputs)
