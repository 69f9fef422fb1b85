"""The id of a request: the client's if it is well formed, else a new one."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping

HEADER = b"x-request-id"
WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Creates ids that are unique in this process, and almost certainly across processes."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4).encode()  # of this process; a number follows
        self._numbers = itertools.count()

    def of(self, fields: Mapping[bytes, bytes]) -> bytes:
        """The id of a request with these headers, whose names are in lower case."""
        given = fields.get(HEADER)
        if given is not None and WELL_FORMED.fullmatch(given):
            return given
        return self._prefix + b"%08x" % (next(self._numbers) & 0xFFFFFFFF)
