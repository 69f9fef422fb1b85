"""The Open Inference Protocol's names of dtypes, and those of Triton's model configuration."""

from __future__ import annotations

from collections.abc import Mapping

from models.tensors import AnyDtype

BYTES = "BYTES"  # texts, files or other bytes of any length
DATATYPES: Mapping[AnyDtype, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bytes": BYTES,
}
DTYPES: Mapping[str, AnyDtype] = {datatype: dtype for dtype, datatype in DATATYPES.items()}


def config_type(dtype: AnyDtype) -> str:
    """The name in a model configuration, such as TYPE_FP32."""
    return "TYPE_STRING" if dtype == "bytes" else f"TYPE_{DATATYPES[dtype]}"
