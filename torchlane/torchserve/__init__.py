"""Runs the handlers of TorchServe's archives in the process of a handler.

`Handler` runs an archive; the other modules are what its Python files import as `ts`: see `names`.
What they do follows TorchServe 0.12 (https://github.com/pytorch/serve), whose handlers must give
the same answers here.
"""

from __future__ import annotations

from torchlane.torchserve.archive import Handler

__all__ = ["Handler"]
