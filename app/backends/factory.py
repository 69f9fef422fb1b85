"""Chooses the backend for a selection on a device: one per form, combined by the plan."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog
import torch

from app.backends.base import Backend
from app.backends.devices import compute_with
from app.backends.forward import FormBackend
from app.backends.golden import Golden
from app.backends.pipeline import PipelineBackend
from app.backends.planned import Candidate, Measurements, PlannedBackend
from app.backends.selection import Selection, runs_on, stored_steps
from app.errors import VariantUnusable
from app.types import Device
from models.manifest import Manifest
from models.runtimes.forms import processor_of

LOG = structlog.get_logger(__name__)


class TorchBackends:
    """Creates the backends of one process.

    Args:
        max_batch_size: the largest batch, if a selection sets no other.
        threads: threads of each replica on the CPU.
    """

    def __init__(self, devices: tuple[Device, ...], max_batch_size: int, threads: int) -> None:
        self._threads = threads
        self._replicas = len(devices)
        self._max_batch_size = max_batch_size
        self._measurements = Measurements()

    def make(
        self, folder: Path, manifest: Manifest, digest: str, selection: Selection, device: Device
    ) -> Backend:
        """Create a backend, which is not yet loaded.

        Args:
            folder: the artifact's folder.
            manifest: the artifact's manifest.
            digest: the manifest's digest, under which measurements are stored.
            selection: the forms that may serve.
            device: where to run; a pipeline's devices are in the selection.

        Raises:
            VariantUnusable: if no form of the selection runs on such a device.
        """
        if selection.devices:
            (form,) = selection.candidates
            for each in selection.devices:
                if each.kind not in selection.candidates[form].device_kinds:
                    raise VariantUnusable(f"{form} is not made for {each}")
            begin = partial(compute_with, self._threads)
            return PipelineBackend(folder, manifest, form, selection.devices, begin)
        forms = runs_on(selection, device.kind)
        if not forms:
            files = ", ".join(dict.fromkeys(v.file for v in selection.candidates.values()))
            kinds = {kind for v in selection.candidates.values() for kind in v.device_kinds}
            raise VariantUnusable(f"{files} runs on {', '.join(sorted(kinds))}, not on {device}")
        largest = selection.max_batch_size or self._max_batch_size
        here = processor_of(torch.device(str(device)), self._threads)
        plan = manifest.plan.on(device.kind) if manifest.plan else None
        steps, why_not = stored_steps(plan, selection, here, torch.__version__, largest)
        if steps is None and len(forms) > 1:
            LOG.info(
                "plan_not_used",
                model=f"{manifest.model}/{manifest.version}",
                reason=why_not,
                instead="the forms are timed while the model is warmed",
            )
        parts = {
            form: Candidate(
                FormBackend(folder, manifest, form, device, self._replicas),
                Golden(manifest, variant.tolerance),
            )
            for form, variant in forms.items()
        }
        key = (digest, selection.label, here, largest)
        mixable = manifest.may_mix(forms.values())
        return PlannedBackend(parts, steps, here, self._measurements, key, mixable=mixable)
