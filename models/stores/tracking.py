"""A server of MLflow over HTTP, with the login that MLflow's own client uses.

It sends files without their length before MLflow 3.16, which the library of other stores refuses.
So httpx asks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlsplit

import httpx

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
        async with contextlib.aclosing(await self.open(path, query)) as answer:
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
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        stack = contextlib.AsyncExitStack()
        try:
            async with _in_time(self._url):
                client = httpx.AsyncClient(verify=self._tls, auth=_login(), timeout=REQUEST_S)
                await stack.enter_async_context(client)
                request = client.stream("GET", f"{self}{path}", params=query, headers=headers)
                response = await stack.enter_async_context(request)
            if response.status_code == 404:
                raise Missing(f"{self._url}: {self}{path} does not exist")
            if response.status_code not in (200, 206):
                is_denied = response.status_code in (401, 403)
                login = f"; it takes {CREDENTIALS['models']}" * is_denied
                raise StoreError(f"{self._url}: {self} answers {response.status_code}{login}")
            answer = Answer(self._url, response, stack)
            while response.status_code == 200 and start:  # it does not answer range requests
                start -= len(await answer.read(min(start, PIECE))) or start
        except BaseException:
            await stack.aclose()
            raise
        return answer


class Answer:
    """An answer, whose body is read piece by piece.

    Args:
        url: the store, for messages.
        response: has the body.
        stack: closes the response and its connection.
    """

    def __init__(
        self, url: StoreUrl, response: httpx.Response, stack: contextlib.AsyncExitStack
    ) -> None:
        self._url = url
        self._pieces = response.aiter_raw()
        self._stack = stack
        self._rest = b""

    async def read(self, size: int) -> bytes:
        """As many bytes, or fewer at the end of the body.

        Raises:
            StoreError: if they do not arrive.
        """
        data = bytearray(self._rest)
        async with _in_time(self._url):
            while len(data) < size and (piece := await anext(self._pieces, b"")):
                data += piece
        self._rest = bytes(data[size:])
        return bytes(data[:size])

    async def aclose(self) -> None:
        """End the connection."""
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def _in_time(url: StoreUrl) -> AsyncIterator[None]:
    """End what takes too long; errors are those of a store.

    Raises:
        StoreError: in place of all of them.
    """
    try:
        async with asyncio.timeout(REQUEST_S):
            yield
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise StoreError(f"{url}: the MLflow server: {reason_of(error, url)}") from None


def _login() -> httpx.BasicAuth | Callable[[httpx.Request], httpx.Request] | None:
    """That of MLflow's client: a user with a password comes before a token."""
    names = (f"MLFLOW_TRACKING_{each}" for each in ("USERNAME", "PASSWORD", "TOKEN"))
    user, password, token = (os.environ.get(name) for name in names)
    if user and password:
        return httpx.BasicAuth(user, password)
    if not token:
        return None

    def bear(request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return bear
