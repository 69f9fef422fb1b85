"""Opens the store of a URL."""

from __future__ import annotations

from models.stores.base import Store
from models.stores.buckets import Bucket
from models.stores.hub import HubRepository
from models.stores.urls import StoreUrl
from models.stores.web import WebFolder

STORES: dict[str, type[Store]] = {"hf": HubRepository, "http": WebFolder, "https": WebFolder}


def open_store(url: StoreUrl) -> Store:
    """The store of a URL; nothing is sent to it.

    Raises:
        StoreError: if variables or files of the store's tools are wrong.
    """
    if url.scheme == "models":
        # Not at the top: only servers with an extra need its imports.
        from models.stores.mlflow import RegisteredModel  # noqa: PLC0415

        return RegisteredModel(url)
    return STORES.get(url.scheme, Bucket)(url)
