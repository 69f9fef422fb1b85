"""The API key of a load test, where the server asks for one."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "TORCHLANE_LOAD_API_KEY"


def with_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request, and the key of the environment with them.

    It is read anew each time: nothing else keeps it, and no report or log can tell it.
    """
    key = os.environ.get(VARIABLE)
    return {**headers, "Authorization": f"Bearer {key}"} if key else dict(headers)
