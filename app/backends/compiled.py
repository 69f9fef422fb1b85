"""A compiled model (AOTInductor) on one device.

A package accepts inputs of a wrong shape without an error, so `models.forms.Compiled` checks them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from app.backends.forward import FormBackend
from app.errors import ArtifactInvalid, VariantUnusable
from app.types import Device
from models.forms import (
    Compiled,
    Forward,
    WrongMachine,
    check_runs_here,
)
from models.manifest import Manifest
from models.packages import Packages
from models.plan import Form


class CompiledBackend(FormBackend):
    """One compiled variant; see `app.backends.base.Backend`.

    Args:
        folder: see `FormBackend`, as for the next three.
        manifest: the artifact's manifest.
        form: the form to run.
        device: where to run.
        packages: the loaded packages, which replicas share.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        form: Form,
        device: Device,
        packages: Packages,
    ) -> None:
        super().__init__(folder, manifest, form, device)
        self._packages = packages

    def open(self, data: bytes, device: torch.device) -> Forward:
        """See `FormBackend`."""
        try:
            check_runs_here(self.variant, device, torch.__version__)
        except WrongMachine as error:
            raise VariantUnusable(str(error)) from error
        return Compiled(self._packages.load(data, device), self.manifest.inputs)

    def load_error(self, name: str) -> ArtifactInvalid:
        """See `FormBackend`."""
        return VariantUnusable(
            f"{name} could not be loaded, and the log has the reason; it needs memory files that "
            "allow execution, or a temporary folder (TMPDIR) that does"
        )
