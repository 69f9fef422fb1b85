"""A model of OpenVINO on the CPU."""

from __future__ import annotations

import torch

from app.backends.forward import FormBackend
from app.errors import ArtifactInvalid, VariantUnusable
from models.forms import Forward
from models.openvino_models import NotInstalled, load_openvino


class OpenVinoBackend(FormBackend):
    """One OpenVINO variant; see `app.backends.base.Backend`. Replicas share its weights."""

    def open(self, data: bytes, device: torch.device) -> Forward:
        """See `FormBackend`."""
        try:
            return load_openvino(data)
        except NotInstalled as error:
            raise VariantUnusable(f"{self.variant.file}: {error}") from error

    def load_error(self, name: str) -> ArtifactInvalid:
        """See `FormBackend`."""
        return VariantUnusable(f"{name} could not be loaded by the installed release of OpenVINO")
