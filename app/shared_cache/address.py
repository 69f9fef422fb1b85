"""Address and login of the cache server, from a URL in the form of redis-py."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from redis.asyncio.connection import (
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.exceptions import RedisError

from app.shared_cache.link import Link, Refused

NAME = "torchlane"  # of the connections in CLIENT LIST
UNUSABLE = (OSError, ValueError, RedisError)


class Address:
    """A server and a login.

    Args:
        url: redis, rediss or unix, with the options of redis-py.

    Attributes:
        shown: the server's address for logs, without user, password and options.

    Raises:
        ValueError: if the URL is wrong; the message quotes none of it but names of options.
    """

    def __init__(self, url: str) -> None:
        for name, values in parse_qs(urlsplit(url).query, keep_blank_values=True).items():
            if "" in values:  # redis-py would ignore it
                raise ValueError(f"the option {name!r} has no value")
        try:
            server, self._tls = _parsed(url)
        except (TypeError, *UNUSABLE) as error:
            raise ValueError(_wrong(url, error)) from None
        self._server = server
        is_path = isinstance(server, UnixDomainSocketConnection)
        self.shown = server.path if is_path else f"{server.host}:{server.port}"

    async def connect(self, lost: Callable[[str], None]) -> Link:
        """Connect and log in.

        Args:
            lost: see `Link`.

        Raises:
            OSError, ValueError: if the server cannot be reached.
            LinkError: if the server cannot be used or rejects the login.
        """
        loop, server = asyncio.get_running_loop(), self._server
        create = partial(Link, lost)
        if isinstance(server, UnixDomainSocketConnection):
            _, link = await loop.create_unix_connection(create, server.path)
        else:
            _, link = await loop.create_connection(create, server.host, server.port, ssl=self._tls)
        try:
            await self._log_in(link)
        except BaseException:
            link.close()
            raise
        return link

    async def _log_in(self, link: Link) -> None:
        user, password = self._server.username, self._server.password or ""
        if user or password:
            await link.ask("AUTH", *([user] if user else []), password)
        if self._server.db:
            await link.ask("SELECT", str(self._server.db))
        try:
            await link.ask("CLIENT", "SETNAME", NAME)
        except Refused:  # the user may lack the permission; the name is optional
            return


def _parsed(url: str) -> tuple[Any, ssl.SSLContext | None]:
    """Let redis-py read a URL: a connection that is not opened, and its TLS context."""
    options = dict(parse_url(url))
    kind = options.pop("connection_class", Connection)
    server = kind(**options)  # type: ignore[operator]
    return server, server.ssl_context.get() if isinstance(server, SSLConnection) else None


def _wrong(url: str, error: Exception) -> str:
    """Say which option of a URL is wrong: the one that also fails alone."""
    parts = urlsplit(url)
    for name, values in parse_qs(parts.query).items():
        alone = f"{quote(name)}={quote(values[0])}"
        try:
            _parsed(parts._replace(query=alone).geturl())
        except TypeError:
            return f"redis-py does not know the option {name!r}"
        except UNUSABLE as failed:
            what = getattr(failed, "strerror", None) or "its value is not accepted"
            return f"the option {name!r} cannot be used: {what}"
    return f"its options cannot be used together ({type(error).__name__})"
