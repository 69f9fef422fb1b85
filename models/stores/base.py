"""A repository in a store: list, read, read a range; most stores do so by the library obstore."""

from __future__ import annotations

import abc
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from models.stores.aws import ProfileError
from models.stores.errors import Exists, Missing, StoreError, TooLarge, reason_of
from models.stores.urls import StoreUrl

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

PAGE = 1000  # keys in an answer; no store sends more
# A store that is away is asked again by the next poll; the retries are for single lost answers.
RETRIES, RETRY_S, BACKOFF_S = 3, 15, 0.1
CONNECT_S, READ_S, REQUEST_S = 5, 15, 60
PIECE = 1 << 20  # bytes of an answer that are taken at once


class Entry(NamedTuple):
    """A file in a store.

    Attributes:
        key: its path below the repository.
        etag: changes with the content; None: the listing does not say.
    """

    key: str
    etag: str | None


class Content(NamedTuple):
    """What a file contains, and its ETag, if the store has them."""

    data: bytes
    etag: str | None


class Store(abc.ABC):
    """A repository in a store; every method ends, also if the store does not answer.

    Args:
        url: of the repository.
    """

    def __init__(self, url: StoreUrl) -> None:
        self.url = url

    @abc.abstractmethod
    def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        """All files of the repository, or of a folder in it.

        Args:
            limit: the most files.
            below: the folder; None: the repository.

        Raises:
            TooLarge: if there are more.
            StoreError: if they cannot be listed; what was returned until then is a part only.
        """

    async def read(self, key: str, limit: int) -> Content:
        """A whole small file; see `read_unless`."""
        content = await self.read_unless(key, limit, None)
        if content is None:
            raise StoreError(f"{self.url}/{key}: the store answers as if it had been asked before")
        return content

    @abc.abstractmethod
    async def read_unless(self, key: str, limit: int, etag: str | None) -> Content | None:
        """A whole small file; None if it still has this ETag.

        Raises:
            Missing: if there is none.
            TooLarge: if it has more bytes than the limit.
            StoreError: if it cannot be read.
        """

    @abc.abstractmethod
    async def read_range(self, key: str, start: int, stop: int, size: int) -> list[memoryview]:
        """The bytes from `start` to `stop` of a file of `size` bytes, in pieces as they arrived.

        A file that is read at once needs no server that answers range requests.

        Raises:
            Missing: if there is no such file.
            TooLarge: if it is read at once, and larger, or more bytes arrive.
            StoreError: if it cannot be read.
        """

    async def stop_reading(self) -> None:  # noqa: B027 # most stores keep nothing open
        """End what ranges of a file have left open; called after each download."""


class LibraryStore(Store):
    """See `Store`; the library obstore reads it.

    Raises:
        StoreError: if variables or files of the store's tools are wrong.
    """

    def __init__(self, url: StoreUrl) -> None:
        super().__init__(url)
        with self._translated(None):
            self._store = self._opened()

    @abc.abstractmethod
    def _opened(self) -> ObjectStore:
        """The library's object for the repository; nothing is sent."""

    async def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        import obstore  # noqa: PLC0415 # an extra

        with self._translated(None):
            async for page in obstore.list(self._store, below, chunk_size=PAGE):
                limit -= len(page)
                if limit < 0:
                    raise TooLarge(
                        f"{self.url} has too many files to be listed; give the models a folder of "
                        "their own"
                    )
                for each in page:
                    yield Entry(each["path"], each["e_tag"])

    async def read_unless(self, key: str, limit: int, etag: str | None) -> Content | None:
        return await self._read_from(self._store, key, limit, etag)

    async def _read_from(
        self, store: ObjectStore, key: str, limit: int, etag: str | None
    ) -> Content | None:
        import obstore  # noqa: PLC0415 # an extra
        from obstore.exceptions import NotModifiedError  # noqa: PLC0415

        options: GetOptions = {} if etag is None else {"if_none_match": etag}
        with self._translated(key), contextlib.suppress(NotModifiedError):
            answer = await obstore.get_async(store, key, options=options)
            data = bytearray()
            if answer.meta["size"] <= limit:
                async for piece in answer.stream():
                    data += piece
                    if len(data) > limit:  # whatever the head of the answer says
                        break
            if (size := max(len(data), answer.meta["size"])) > limit:
                what = key or str(self.url)
                raise TooLarge(f"{what} has {size:,} bytes; at most {limit:,} are read")
            return Content(bytes(data), answer.meta["e_tag"])
        return None

    async def read_range(self, key: str, start: int, stop: int, size: int) -> list[memoryview]:
        import obstore  # noqa: PLC0415 # an extra

        if (start, stop) == (0, size):
            return [memoryview((await self.read(key, size)).data)]
        with self._translated(key):
            wanted: GetOptions = {"range": (start, stop)}
            answer = await obstore.get_async(self._store, key, options=wanted)
            pieces, left = [], stop - start
            async for piece in answer.stream(PIECE):
                left -= len(piece)
                if left < 0:  # whatever the head of the answer says
                    raise TooLarge(f"{key} sends more than the {stop - start:,} bytes asked for")
                pieces.append(memoryview(piece))
            return pieces

    @contextlib.contextmanager
    def _translated(self, key: str | None) -> Iterator[None]:
        """Turn the library's errors into ours."""
        from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415 # an extra

        what = str(self.url) if key is None else f"{self.url}/{key}"
        try:
            yield
        except FileNotFoundError:
            raise Missing(f"{what} does not exist") from None
        except AlreadyExistsError:
            raise Exists(f"{what} exists") from None
        except ProfileError as error:
            raise StoreError(str(error)) from None
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(f"{what}: {reason_of(error, self.url)}") from None
        except Exception as error:
            if type(error).__name__ != "RustPanic":  # which no module exports
                raise
            raise StoreError(
                f"{what}: the store's library failed; look for line breaks and malformed addresses "
                "in its variables and profile"
            ) from None


def client_options() -> ClientConfig:
    """Limits of each request."""
    return {
        "connect_timeout": dt.timedelta(seconds=CONNECT_S),
        "read_timeout": dt.timedelta(seconds=READ_S),
        "timeout": dt.timedelta(seconds=REQUEST_S),
    }


def retries() -> RetryConfig:
    """How often a request is repeated."""
    backoff = dt.timedelta(seconds=BACKOFF_S)
    return {
        "max_retries": RETRIES,
        "retry_timeout": dt.timedelta(seconds=RETRY_S),
        "backoff": {"init_backoff": backoff, "max_backoff": 20 * backoff, "base": 2},
    }
