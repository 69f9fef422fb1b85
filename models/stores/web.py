"""A repository in a folder of a web server, which can only be read."""

from __future__ import annotations

import base64
import json
import netrc
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from models.manifest import MANIFEST_FILE
from models.stores.base import Entry, LibraryStore, client_options, retries
from models.stores.errors import Missing, StoreError, TooLarge
from models.stores.home import home_folder

if TYPE_CHECKING:
    from obstore.store import HTTPStore

INDEX_FILE = "index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_FOLDERS = 1000  # of models, each of which costs a request
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # others are not asked for
HINT = (
    f'put {INDEX_FILE} there, such as {{"digits": [1, 2]}}, or let the server list folders as '
    "JSON, as nginx does with `autoindex_format json`"
)


class WebFolder(LibraryStore):
    """See `Store`; its versions are those of `index.json`, else of folders that the server lists.

    A login is taken from ~/.netrc, and only sent over TLS.
    """

    def _opened(self) -> HTTPStore:
        return self._at("")

    def _at(self, folder: str) -> HTTPStore:
        """The library's object for a folder; with a slash at its end, it reads the folder itself.

        Raises:
            StoreError: if the file with the login is malformed.
        """
        # Not at the top: an extra, whose import starts threads.
        from obstore.store import HTTPStore  # noqa: PLC0415

        options = client_options()
        options["allow_http"] = self.url.scheme == "http"
        if self.url.scheme == "https" and (login := self._login()) is not None:
            options["default_headers"] = {"Authorization": login}
        path = f"{self.url.path}/{folder}".strip("/") + "/" * folder.endswith("/")
        address = f"{self.url.scheme}://{self.url.place}/{quote(path).lstrip('/')}"
        return HTTPStore.from_url(address, client_options=options, retry_config=retries())

    def _login(self) -> str | None:
        home = home_folder()
        given = os.environ.get("NETRC") or (home and home / ".netrc")
        if given is None:
            return None
        file = Path(given)
        host = self.url.place.partition(":")[0]
        try:
            found = netrc.netrc(file).authenticators(host)
        except FileNotFoundError:
            return None
        except netrc.NetrcParseError:
            raise StoreError(f"{file} is malformed") from None
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror}") from None
        if found is None:
            return None
        return "Basic " + base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()

    async def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        """The manifests of all versions, without ETags.

        Raises:
            TooLarge: if there are more than the limit.
            StoreError: if the server has neither an index nor lists folders as JSON.
        """
        found = 0
        async for model, version in self._versions():
            found += 1
            if found > limit:
                raise TooLarge(f"{self.url} has too many versions to be listed")
            yield Entry(f"{model}/{version}/{MANIFEST_FILE}", None)

    async def _versions(self) -> AsyncIterator[tuple[str, str]]:
        try:
            index = (await self.read(INDEX_FILE, MAX_INDEX_BYTES)).data
        except Missing:
            models = [each for each in await self._listed("") if MODEL.fullmatch(each)]
            if len(models) > MAX_FOLDERS:
                raise TooLarge(
                    f"{self.url} has {len(models):,} folders, and at most {MAX_FOLDERS:,} are "
                    f"listed one by one: put {INDEX_FILE} there"
                ) from None
            for model in models:
                for version in await self._listed(model):
                    yield model, version
            return
        for model, versions in _index_of(self._parsed(index, f"{self.url}/{INDEX_FILE}")):
            for number in versions:
                yield model, str(number)

    async def _listed(self, folder: str) -> list[str]:
        """The names of the folders in a folder, as nginx lists them.

        Raises:
            StoreError: if the server does not list it as JSON.
        """
        what = f"{self.url}/{folder}"
        try:
            content = await self._read_from(self._at(f"{folder}/"), "", MAX_INDEX_BYTES, None)
        except Missing:
            content = None
        if content is None:
            raise StoreError(f"{self.url} does not list its versions: {HINT}")
        listed = self._parsed(content.data, what)
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise StoreError(f"{what} is no list of files: {HINT}")
        return [str(each.get("name")) for each in listed if each.get("type") == "directory"]

    def _parsed(self, data: bytes, what: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise StoreError(f"{what} is not JSON: {HINT}") from None


def _index_of(index: Any) -> Iterator[tuple[str, list[int]]]:
    """The versions of each model.

    Raises:
        StoreError: if the index has another form.
    """
    if not isinstance(index, dict):
        raise StoreError(f"{INDEX_FILE} is not a map of models: {HINT}")
    for model, versions in index.items():
        if not isinstance(versions, list) or not all(type(each) is int for each in versions):
            raise StoreError(f"{INDEX_FILE}: the versions of a model are a list of numbers: {HINT}")
        yield model, versions
