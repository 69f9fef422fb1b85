"""Reader of TorchScript files; deploy/machine_code.py compiles it from torchscript_file.cpp."""

import torch

TORCH_VERSION: str

def load(path: str, device: str, /) -> torch._C.ScriptModule:
    """Read a file without holding the GIL.

    Raises:
        RuntimeError: if torch cannot read it.
    """
