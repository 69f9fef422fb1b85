"""A repository in a bucket of S3, Google Cloud Storage or Azure Blob Storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from models.stores.aws import credentials_here
from models.stores.base import Store, client_options, retries

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class Bucket(Store):
    """See `Store`; credentials are found as the tools of the store find them."""

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
        if config.get("endpoint", "").startswith("http://"):
            options["allow_http"] = True
        return S3Store(
            self.url.place,
            prefix=prefix,
            config=config,  # type: ignore[arg-type]  # a TypedDict with such keys
            client_options=options,
            retry_config=retries(),
            credential_provider=provider,
        )
