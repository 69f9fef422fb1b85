"""A repository in a model repository of the Hugging Face Hub, which can only be read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from models.stores.base import CONNECT_S, READ_S, Entry, LibraryStore, client_options, retries
from models.stores.errors import StoreError, TooLarge, reason_of
from models.stores.urls import CREDENTIALS

if TYPE_CHECKING:
    import httpx2
    from obstore.store import HTTPStore

ENDPOINT = "https://huggingface.co"


class HubRepository(LibraryStore):
    """See `Store`; files are listed by the Hub's own library, and read over HTTP."""

    def _opened(self) -> HTTPStore:
        # Not at the top: extras.
        from huggingface_hub import get_token  # noqa: PLC0415
        from obstore.store import HTTPStore  # noqa: PLC0415

        name, _, revision = self.url.path.partition("@")
        self._id, self._revision = f"{self.url.place}/{name}", revision or "main"
        self._endpoint = os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
        options = client_options()
        options["allow_http"] = self._endpoint.startswith("http://")
        if (token := get_token()) is not None:
            options["default_headers"] = {"Authorization": f"Bearer {token}"}
        address = f"{self._endpoint}/{quote(self._id)}/resolve/{quote(self._revision, safe='')}"
        return HTTPStore.from_url(address, client_options=options, retry_config=retries())

    async def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        for entry in await asyncio.to_thread(self._listed, limit, below):
            yield entry

    def _listed(self, limit: int, below: str | None) -> list[Entry]:
        """All files, with their digests in git as ETags.

        Raises:
            StoreError, TooLarge: see `Store.entries`.
        """
        # Not at the top: an extra.
        from huggingface_hub import HfApi  # noqa: PLC0415
        from huggingface_hub.errors import (  # type: ignore[attr-defined]  # noqa: PLC0415
            HfHubHTTPError,
            HTTPError,
        )
        from huggingface_hub.hf_api import RepoFile  # noqa: PLC0415

        _limit_requests()
        api = HfApi(self._endpoint)
        tree = api.list_repo_tree(self._id, below, recursive=True, revision=self._revision)
        try:
            found = list(islice(tree, limit + 1))
        except HfHubHTTPError as error:
            status = error.response.status_code
            login = f"; it takes {CREDENTIALS['hf']}" if status in (401, 403, 404) else ""
            raise StoreError(f"{self.url}: the Hub answers {status}{login}") from None
        except (HTTPError, OSError, ValueError) as error:
            raise StoreError(f"{self.url}: the Hub: {reason_of(error, self.url)}") from None
        if len(found) > limit:
            raise TooLarge(f"{self.url} has too many files to be listed")
        return [Entry(each.path, each.blob_id) for each in found if isinstance(each, RepoFile)]


@cache  # setting it again would close connections that are in use
def _limit_requests() -> None:
    """Have requests of the Hub's library end if no answer comes.

    It lists with "no limit" as an argument, which a client's own limit does not change.
    """
    # Not at the top: extras.
    import httpx2  # noqa: PLC0415
    from huggingface_hub import get_session, set_client_factory  # noqa: PLC0415

    limit = httpx2.Timeout(READ_S, connect=CONNECT_S).as_dict()

    def limited(request: httpx2.Request) -> None:
        given = request.extensions.get("timeout", {})
        if all(seconds is None for seconds in given.values()):
            request.extensions["timeout"] = limit

    hooks = get_session().event_hooks["request"]  # of the library

    def client() -> httpx2.Client:
        return httpx2.Client(
            event_hooks={"request": [limited, *hooks]}, follow_redirects=True, timeout=None
        )

    set_client_factory(client)
