"""A repository in a bucket of S3, Google Cloud Storage or Azure Blob Storage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from models.stores.aws import check_endpoint, credentials_here
from models.stores.base import LibraryStore, client_options, retries
from models.stores.errors import Missing

if TYPE_CHECKING:
    from obstore.store import ObjectStore

UPLOAD_PART = 16 << 20


class Bucket(LibraryStore):
    """See `Store`; it can also be written to.

    Credentials are found as the tools of the store find them.
    """

    def _opened(self) -> ObjectStore:
        # Not at the top: an extra, whose import starts threads.
        from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

        options, prefix = client_options(), self.url.path or None
        if self.url.scheme == "gs":
            return GCSStore(
                self.url.place, prefix=prefix, client_options=options, retry_config=retries()
            )
        if self.url.scheme == "az":
            return AzureStore(
                self.url.place, prefix=prefix, client_options=options, retry_config=retries()
            )
        config, provider = credentials_here()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            config["endpoint"] = endpoint
        if endpoint := config.get("endpoint"):
            check_endpoint(endpoint)
            options["allow_http"] = urlsplit(endpoint).scheme == "http"
        return S3Store(
            self.url.place,
            prefix=prefix,
            config=config,  # type: ignore[arg-type]  # a TypedDict with such keys
            client_options=options,
            retry_config=retries(),
            credential_provider=provider,
        )

    async def write(self, key: str, content: bytes | Path) -> None:
        """Write a file; a large one in parts.

        Raises:
            StoreError: if that fails.
        """
        import obstore  # noqa: PLC0415 # an extra

        with self._translated(key):
            await obstore.put_async(self._store, key, content, chunk_size=UPLOAD_PART)

    async def write_new(self, key: str, content: bytes) -> None:
        """Write a small file if there is none, whoever else does so at this moment.

        Raises:
            Exists: if there is one.
            StoreError: if that fails.
        """
        import obstore  # noqa: PLC0415 # an extra

        with self._translated(key):
            await obstore.put_async(self._store, key, content, mode="create")

    async def remove(self, key: str) -> None:
        """Remove a file, if it is there.

        Raises:
            StoreError: if that fails.
        """
        import obstore  # noqa: PLC0415 # an extra

        with contextlib.suppress(Missing), self._translated(key):
            await obstore.delete_async(self._store, key)
