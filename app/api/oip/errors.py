"""Errors of the Open Inference Protocol."""

from __future__ import annotations

from app.api.errors import ErrorForm
from app.errors import InvalidInput

ERRORS = ErrorForm(lambda failure: {"error": failure.message}, {InvalidInput: 400})
