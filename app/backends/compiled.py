"""A package of machine code that AOTInductor made, on one device.

It holds the GIL while it runs, so a plan uses it only for short forwards, and it takes inputs of a
wrong shape without a word, so `models.forms.Compiled` looks at them first.
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
        folder: see `FormBackend`, like what follows.
        manifest: what is in it.
        form: which variant.
        device: where to run.
        packages: where loaded packages are kept: each is loaded once a process. What is closed
            stays there, for to load it again would leak.
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

    def refused(self, name: str) -> ArtifactInvalid:
        """See `FormBackend`."""
        return VariantUnusable(
            f"{name} could not be loaded; it needs a temporary folder (TMPDIR) that can "
            "be written to and executed from"
        )
