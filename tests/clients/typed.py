"""What the models that are named after dtypes take and give back; clients import it."""

from __future__ import annotations

import numpy as np

TYPED = {
    "bool": np.array([[True, False]]),
    "uint8": np.array([[0, 255]], np.uint8),
    "int8": np.array([[-128, 127]], np.int8),
    "int16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "int32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "int64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "float16": np.array([[0.1, 65504]], np.float16),
    "float32": np.array([[0.1, -3e38]], np.float32),
    "float64": np.array([[0.1, -1e308]], np.float64),
}
