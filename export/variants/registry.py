"""All variants: a literal table, in a plan's order of preference.

`export.options.artifacts.VARIANTS` has their names, which the command line needs without torch.
"""

from __future__ import annotations

from export.errors import UsageError
from export.variants.base import VariantMaker
from export.variants.compiled import AotInductor
from export.variants.half import Half
from export.variants.int8 import Int8
from export.variants.onednn import OneDnn
from export.variants.onnx import Onnx
from export.variants.openvino import OpenVino
from export.variants.staged import Staged
from export.variants.torchscript import TorchScript
from models.definitions.definition import Definition

STAGED = "staged"
# Those whose runtime or converter holds the weights two or three times.
SEVERAL_COPIES = ("openvino", "onnx")
MAKERS: dict[str, VariantMaker] = {
    "script": TorchScript("script"),
    "trace": TorchScript("trace"),
    "onednn": OneDnn(),
    "compiled": AotInductor("cpu"),
    "compiled-cuda": AotInductor("cuda"),
    "openvino": OpenVino(),
    "onnx": Onnx(),
    "bf16": Half("bf16"),
    "fp16": Half("fp16"),
    "int8": Int8(),
    STAGED: Staged(),
}


def select_variants(names: tuple[str, ...] | None, definition: Definition) -> tuple[str, ...]:
    """Return the names of the variants to build, in the order of preference.

    By default a model with stages is built only in stages: it may be too large for anything else.

    Raises:
        UsageError: if a name is unknown, or there is none.
    """
    if names is None:
        whole = tuple(name for name in MAKERS if name != STAGED)
        return whole if definition.stages is None else (STAGED,)
    unknown = [name for name in names if name not in MAKERS]
    if unknown or not names:
        text = ",".join(unknown) or "''"
        raise UsageError(f"--variants {text}: there are: {', '.join(MAKERS)}")
    return tuple(name for name in MAKERS if name in names)
