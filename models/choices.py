"""Values that options, manifests and settings choose from.

Command lines import this file before they parse, so it needs only the standard library.
"""

from __future__ import annotations

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
