"""Torchlane: exports PyTorch models to verified artifacts and serves them.

`create_app` builds the server as a FastAPI application, for programs with routes of their own; see
docs/embedding.md. Importing this package imports neither torch nor the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.embedding import create_app

    __version__: str

__all__ = ["__version__", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from models.distributions import own_version  # noqa: PLC0415 # takes 30 ms

        return own_version()
    if name == "create_app":
        from app.embedding import create_app  # noqa: PLC0415 # imports torch

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
