"""A server of MLflow over HTTP, with the login that MLflow's own client uses.

It sends files without their length before MLflow 3.16, which the library of other stores refuses.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlencode, urlsplit

import h11

from models.stores.base import PIECE, REQUEST_S
from models.stores.errors import Missing, StoreError, TooLarge, reason_of
from models.stores.urls import CREDENTIALS, StoreUrl

URI, CERTIFICATE = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_SERVER_CERT_PATH"
# What MLflow's client also takes, and this does not.
UNSUPPORTED = (
    *(f"MLFLOW_TRACKING_{each}" for each in ("AUTH", "AWS_SIGV4", "CLIENT_CERT_PATH")),
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_WORKSPACE",
)


class TrackingServer:
    """The server that MLflow's variables name.

    Args:
        url: the store that needs it, for messages.

    Raises:
        StoreError: if the variables cannot be used; the message has no secret.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        try:
            self._parts = urlsplit(os.environ.get("MLFLOW_REGISTRY_URI") or os.environ.get(URI, ""))
            is_plain = self._parts.port != 0 and not {*"@?#"} & {*self._parts.geturl()}
        except ValueError:
            is_plain = False
        if not is_plain or self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise StoreError(
                f"{url} needs the address of the MLflow server, such as {URI}=http://127.0.0.1:5000"
            )
        for name in UNSUPPORTED:
            if os.environ.get(name, "").lower() not in ("", "0", "false"):
                raise StoreError(f"{url}: {name} is not supported; unset it")
        self._tls: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=os.environ.get(CERTIFICATE) or None)
            except OSError:
                raise StoreError(f"{url}: {CERTIFICATE} is no file of certificates") from None

    def __str__(self) -> str:
        """Its address."""
        return self._parts.geturl().rstrip("/")

    async def get(self, path: str, query: Mapping[str, str], limit: int) -> bytes:
        """The whole body of an answer.

        Raises:
            TooLarge: if it has more bytes than the limit.
            Missing, StoreError: see `open`.
        """
        with contextlib.closing(await self.open(path, query)) as answer:
            data = await answer.read(limit + 1)
        if len(data) > limit:
            raise TooLarge(f"{self._url}: {self}{path} has more than {limit:,} bytes")
        return data

    async def open(self, path: str, query: Mapping[str, str], start: int = 0) -> Answer:
        """Send a GET request.

        Args:
            path: quoted, below the address.
            query: of the request.
            start: the first byte of the body that is read.

        Raises:
            Missing: if the server answers 404.
            StoreError: if it answers with another error, or not at all.
        """
        parts = self._parts
        port = parts.port or (80 if self._tls is None else 443)
        headers = [("Host", parts.netloc), *_login()]
        if start:
            headers.append(("Range", f"bytes={start}-"))
        target = parts.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        async with _in_time(self._url):
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=self._tls)
        answer = Answer(self._url, reader, writer)
        try:
            status = await answer.begin(target, headers)
            if status == 404:
                raise Missing(f"{self._url}: {self}{path} does not exist")
            if status not in (200, 206):
                login = f"; it takes {CREDENTIALS['models']}" if status in (401, 403) else ""
                raise StoreError(f"{self._url}: {self} answers {status}{login}")
            while status == 200 and start:  # it does not answer range requests
                start -= len(await answer.read(min(start, PIECE))) or start
        except BaseException:
            answer.close()
            raise
        return answer


class Answer:
    """An answer, whose body is read piece by piece."""

    def __init__(
        self, url: StoreUrl, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._url, self._reader, self._writer = url, reader, writer
        self._connection = h11.Connection(h11.CLIENT)
        self._rest = b""

    async def begin(self, target: str, headers: list[tuple[str, str]]) -> int:
        """Send the request; returns the status.

        Raises:
            StoreError: if there is no answer.
        """
        async with _in_time(self._url):
            request = h11.Request(method="GET", target=target, headers=headers)
            sent = (self._connection.send(request), self._connection.send(h11.EndOfMessage()))
            self._writer.write(b"".join(each for each in sent if each))
            while not isinstance(event := await self._event(), h11.Response):
                pass
            return event.status_code

    async def read(self, size: int) -> bytes:
        """As many bytes, or fewer at the end of the body.

        Raises:
            StoreError: if they do not arrive.
        """
        data = bytearray(self._rest)
        async with _in_time(self._url):
            while len(data) < size and isinstance(event := await self._event(), h11.Data):
                data += event.data
        self._rest = bytes(data[size:])
        return bytes(data[:size])

    async def _event(self) -> object:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._reader.read(PIECE))
        return event

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


@contextlib.asynccontextmanager
async def _in_time(url: StoreUrl) -> AsyncIterator[None]:
    """End what takes too long; errors are those of a store.

    Raises:
        StoreError: in place of all of them.
    """
    try:
        async with asyncio.timeout(REQUEST_S):
            yield
    except (OSError, h11.ProtocolError) as error:
        raise StoreError(f"{url}: the MLflow server: {reason_of(error, url)}") from None


def _login() -> list[tuple[str, str]]:
    """The header of MLflow's client: a user with a password comes before a token."""
    names = (f"MLFLOW_TRACKING_{each}" for each in ("USERNAME", "PASSWORD", "TOKEN"))
    user, password, token = (os.environ.get(name) for name in names)
    if user and password:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        return [("Authorization", f"Basic {token}")]
    return [("Authorization", f"Bearer {token}")] if token else []
