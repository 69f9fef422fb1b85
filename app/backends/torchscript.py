"""A TorchScript file on one device, unchanged or optimized for inference at load."""

from __future__ import annotations

import torch

from app.backends.forward import FormBackend
from app.errors import ArtifactInvalid, VariantUnusable
from models.forms import Forward, load_torchscript


class TorchScriptBackend(FormBackend):
    """One form of one TorchScript variant; see `app.backends.base.Backend`."""

    def open(self, data: bytes, device: torch.device) -> Forward:
        """See `FormBackend`."""
        return load_torchscript(data, device, optimized=self.form.optimized)

    def load_error(self, name: str) -> ArtifactInvalid:
        """See `FormBackend`; only the plain form shows whether the file itself is invalid."""
        if self.form.optimized:
            return VariantUnusable(f"{self.form}: torch cannot optimize {name} here")
        return ArtifactInvalid(
            f"{name} is not a TorchScript file that this version of torch can read"
        )
