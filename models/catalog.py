"""The models that `torchlane export NAME` can build: a literal table, one line per model."""

from __future__ import annotations

from models.definitions.loading import Definitions

# Name -> the module of the definition, which is imported only when the model is requested.
CATALOG = Definitions(
    {
        "digits": "models.definitions.digits",
        "minilm": "models.definitions.minilm",
        "pairwise": "models.definitions.pairwise",
        "residual": "models.definitions.residual",
        "shapes": "models.definitions.shapes",
        "snippets": "models.definitions.snippets",
    }
)
