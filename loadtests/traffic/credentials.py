"""The API key of a load test, where the server asks for one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadtests.errors import UsageError

VARIABLE = "TORCHLANE_LOAD_API_KEY"


def with_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request, and the key of the environment with them; calls do not have it.

    Raises:
        UsageError: if no header can carry it; the message does not repeat it.
    """
    key = os.environ.get(VARIABLE, "").strip()  # files of secrets mostly end with a new line
    if not key:
        return dict(headers)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{VARIABLE} holds no API key: printable ASCII, without spaces")
    return {**headers, "Authorization": f"Bearer {key}"}
