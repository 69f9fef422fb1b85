"""The Open Inference Protocol's names of dtypes, and those of Triton's model configuration."""

from __future__ import annotations

from collections.abc import Mapping

from models.tensors import Dtype

DATATYPES: Mapping[Dtype, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
DTYPES: Mapping[str, Dtype] = {datatype: dtype for dtype, datatype in DATATYPES.items()}
BYTES = "BYTES"  # strings of any bytes, such as files; no model has arrays of them


def config_type(dtype: Dtype) -> str:
    """The name in a model configuration, such as TYPE_FP32."""
    return f"TYPE_{DATATYPES[dtype]}"
