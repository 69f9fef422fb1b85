"""Bounds oneDNN's caches, which keep code for every shape that a model has computed on a CPU.

oneDNN caches its primitives, and ideep, torch's layer above it, what leads to them. By default each
keeps 1,024 entries, which suits the shapes of models whose sizes are fixed. With free sizes, nearly
every request has a new shape, and both only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import structlog

from models.manifest import Manifest

LOG = structlog.get_logger(__name__)
CAPACITY = 256  # entries of each; a shape that is not in them costs a layer about 1 ms
# What this many entries took at most: of a bf16 linear layer. With 1,024 it was 596 MiB.
CACHE_BYTES = 160 << 20
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
FORMER = {"DNNL_PRIMITIVE_CACHE_CAPACITY": VARIABLES[0]}  # oneDNN reads it too


def has_free_sizes(manifest: Manifest) -> bool:
    """Whether items of the model may have different shapes."""
    return not all(spec.is_fixed for spec in manifest.inputs)


def bound_caches(manifests: Iterable[Manifest], environ: MutableMapping[str, str]) -> None:
    """Bound the caches if a model has free sizes, and as far as no variable of the user does.

    The libraries read the variables at their first use: call this before anything is computed.

    Args:
        manifests: of the models; read only until one has free sizes.
        environ: the process's environment.
    """
    own = {FORMER.get(name, name) for name in environ}
    missing = [name for name in VARIABLES if name not in own]
    if missing and any(has_free_sizes(each) for each in manifests):
        environ.update(dict.fromkeys(missing, str(CAPACITY)))
        LOG.info("shape_caches_bounded", entries=CAPACITY, variables=missing)
