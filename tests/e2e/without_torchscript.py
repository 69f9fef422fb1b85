"""`python -m tests.e2e.without_torchscript`: the server on a torch that has no `torch.jit`."""

from __future__ import annotations

import sys

import torch

from app.__main__ import main

if __name__ == "__main__":
    del torch.jit
    missing = [name for name in sys.modules if f"{name}.".startswith("torch.jit.")]
    sys.modules.update(dict.fromkeys(missing, None))  # type: ignore[arg-type]  # not importable
    sys.exit(main())
