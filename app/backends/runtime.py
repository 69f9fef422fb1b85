"""A model of another runtime than torch, on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from app.backends.forward import FormBackend
from app.errors import ArtifactInvalid, VariantUnusable
from app.types import Device
from models.forms import RUNTIMES, Forward
from models.manifest import Manifest
from models.plan import Form
from models.runtimes import NotInstalled


class RuntimeBackend(FormBackend):
    """One variant, whose weights replicas share; see `app.backends.base.Backend`.

    Args:
        folder: see `FormBackend`, as for the next three.
        manifest: the artifact's manifest.
        form: the form to run.
        device: where to run.
        replicas: how many share it.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, form: Form, device: Device, replicas: int
    ) -> None:
        super().__init__(folder, manifest, form, device)
        self._runtime = RUNTIMES[self.variant.format]
        self._replicas = replicas

    def open(self, data: bytes, device: torch.device) -> Forward:
        """See `FormBackend`."""
        try:
            return self._runtime.load(data, self.manifest.inputs, self._replicas)
        except NotInstalled as error:
            raise VariantUnusable(f"{self.variant.file}: {error}") from error

    def load_error(self, name: str) -> ArtifactInvalid:
        """See `FormBackend`."""
        return VariantUnusable(
            f"{name} could not be loaded by the installed release of {self._runtime.name}"
        )
