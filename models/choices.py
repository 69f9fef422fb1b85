"""Values that options, manifests and settings choose from.

Command lines import this file before they parse, so it needs only the standard library.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Literal

Precision = Literal["float32", "bf16", "fp16", "int8"]
MAX_BATCH = 64  # the largest batch that export plans for by default

# How pictures and sounds become arrays, and how outputs become scores.
Polarity = Literal["light-on-dark", "dark-on-light", "auto"]
Alpha = Literal["white", "drop"]
Fit = Literal["pad", "crop", "stretch", "none"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Scores = Literal["softmax", "sigmoid", "none"]
Resampling = Literal["soxr-hq", "soxr-vhq", "none"]

# Of models that read texts.
TextTask = Literal["embed", "classify", "rerank", "classify-tokens"]
Pooling = Literal["mean", "cls", "last"]
Tower = Literal["text", "vision"]


def did_you_mean(
    name: str,
    names: Iterable[str],
    otherwise: str,
    *,
    show: Callable[[str], str] = str,
    cutoff: float = 0.6,
) -> str:
    """Return the hint for a name that is not one of the known ones, for an error.

    Args:
        name: as written.
        names: the known ones.
        otherwise: the hint if none is similar.
        show: returns a known name as the user has to write it.
        cutoff: the least similarity, from 0 to 1, of `difflib`.
    """
    close = difflib.get_close_matches(name, tuple(names), n=1, cutoff=cutoff)
    return f"did you mean {show(close[0])}?" if close else otherwise
