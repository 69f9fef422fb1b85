"""Every variant there is: a literal table, in the order of preference of a plan."""

from __future__ import annotations

from export.variants.base import Maker
from export.variants.compiled import Compiled
from export.variants.half import Half
from export.variants.int8 import Int8
from export.variants.staged import Staged
from export.variants.torchscript import TorchScript

STAGED = "staged"
MAKERS: dict[str, Maker] = {
    "script": TorchScript("script"),
    "trace": TorchScript("trace"),
    "compiled": Compiled("cpu"),
    "compiled-cuda": Compiled("cuda"),
    "bf16": Half("bf16"),
    "fp16": Half("fp16"),
    "int8": Int8(),
    STAGED: Staged(),
}
