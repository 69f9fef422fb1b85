"""Opens the store of a URL."""

from __future__ import annotations

from models.stores.base import Store
from models.stores.buckets import Bucket
from models.stores.urls import StoreUrl
from models.stores.web import WebFolder


def open_store(url: StoreUrl) -> Store:
    """The store of a URL; nothing is sent to it.

    Raises:
        StoreError: if variables or files of the store's tools are wrong.
    """
    return WebFolder(url) if url.scheme in ("http", "https") else Bucket(url)
