"""A TorchScript file on one device, as it is or optimized for inference at load."""

from __future__ import annotations

from app.backends.forward import FormBackend
from app.errors import ArtifactInvalid, VariantUnusable
from models.forms import Forward, load_torchscript


class TorchScriptBackend(FormBackend):
    """One form of one TorchScript variant; see `app.backends.base.Backend`."""

    def open(self, data: bytes) -> Forward:
        """See `FormBackend`."""
        return load_torchscript(data, self.device, optimized=self.form.optimized)

    def refused(self) -> ArtifactInvalid:
        """See `FormBackend`; the file itself is judged by its plain form."""
        if self.form.optimized:
            return VariantUnusable(f"{self.form}: torch cannot optimize {self.file.name} here")
        return ArtifactInvalid(f"{self.file.name} is not a TorchScript file that this torch reads")
