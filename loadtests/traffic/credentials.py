"""The API key of a load test, if the server requires one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadtests.errors import UsageError

VARIABLE = "TORCHLANE_LOAD_API_KEY"


def with_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Add the environment's key to the headers of a request; calls do not have it.

    Raises:
        UsageError: if it is not valid in a header; the message does not repeat it.
    """
    key = os.environ.get(VARIABLE, "").strip()  # files of secrets usually end with a newline
    if not key:
        return dict(headers)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{VARIABLE} is not an API key: printable ASCII, without spaces")
    return {**headers, "Authorization": f"Bearer {key}"}
