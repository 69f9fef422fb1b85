"""URLs of stores that hold a repository of models: buckets, and folders of web servers."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from models.system.extras import check_extra
from models.system.local_paths import SCHEME, local_path

EXAMPLES = {
    "s3": "s3://bucket/models",
    "gs": "gs://bucket/models",
    "az": "az://container/models",
    "hf": "hf://organization/repository@revision",
    "models": "models:/digits@champion",
    "https": "https://example.com/models",
    "http": "http://127.0.0.1:8080/models",
}
WRITABLE = frozenset({"s3", "gs", "az"})
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or the machine's service account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, or the machine's identity",
    "models": "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "hf": "HF_TOKEN, or the token of `hf auth login`",
    "https": "a line for the host in ~/.netrc",
    "http": "a line for the host in ~/.netrc",
}
# The variables that say on which service a place is.
SERVICES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT"),
    "hf": ("HF_ENDPOINT",),
    "models": ("MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_URI"),
}
PACKAGES = ("obstore",)  # of the extra
EXTRAS = {"hf": ("hub", (*PACKAGES, "huggingface_hub")), "models": ("mlflow", (*PACKAGES, "httpx"))}
# A bucket or container; of web servers a host, perhaps with a port.
PLACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
REGISTERED = re.compile(r"[^/:]+(@[^/@:]+|/[0-9]+)")
HUB_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._-]*)?")


class NotAPlace(argparse.ArgumentTypeError, ValueError):
    """The URL is of no store; both argparse and pydantic show the message, which has no secrets."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The URL of a repository in a store; it contains no credentials.

    Attributes:
        scheme: a key of `EXAMPLES`.
        place: the bucket or container; of a web server the host, perhaps with a port; of a
            registered model empty.
        path: of the repository, without slashes around it; empty: the whole place.
    """

    scheme: str
    place: str
    path: str = ""

    def __str__(self) -> str:
        place = f"//{self.place}" * bool(self.place)
        return f"{self.scheme}:{place}" + f"/{self.path}" * bool(self.path)

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Read a URL.

        Raises:
            NotAPlace: if it is of no store, or has a login or a query; the message quotes neither.
        """
        try:
            parts = urlsplit(text)
        except ValueError:
            raise NotAPlace("it is not a URL") from None
        scheme = parts.scheme.lower()
        if scheme not in EXAMPLES:
            known = ", ".join(_beginning(each) for each in EXAMPLES.values())
            raise NotAPlace(f"{_beginning(text)} is not supported; use a folder, or {known}")
        if "@" in parts.netloc or parts.query or parts.fragment or "?" in text or "#" in text:
            raise NotAPlace(
                "the URL may have neither a login nor a query, because it is shown in logs; "
                f"give credentials as {CREDENTIALS[scheme]}"
            )
        if scheme == "models":
            if REGISTERED.fullmatch(path := unquote(parts.path)[1:]) is None or parts.netloc:
                raise NotAPlace(
                    "it names no version of a registered model; write it as in "
                    "models:/digits@champion or models:/digits/3"
                )
        elif PLACE.fullmatch(parts.netloc) is None:
            raise NotAPlace(f"it names no place; write it as in {EXAMPLES[scheme]}")
        path = unquote(parts.path).strip("/")
        if not path.isprintable() or {"", ".", ".."} & set(path.split("/") if path else ()):
            raise NotAPlace(f"its path is not plain; write it as in {EXAMPLES[scheme]}")
        if scheme == "hf" and HUB_PATH.fullmatch(path) is None:
            raise NotAPlace(f"it is no repository of the Hub; write it as in {EXAMPLES[scheme]}")
        return cls(scheme, parts.netloc, path)


Place: TypeAlias = Path | StoreUrl


def place(value: str | Path | StoreUrl) -> Place:
    """Turn a user's text into the place of a repository: a folder, or a URL.

    Raises:
        NotAPlace: if it is a URL that cannot be used.
        NotLocal: if it is a file:// URL.
    """
    if not isinstance(value, str):
        return value
    scheme = SCHEME.match(value)
    if scheme is None or scheme[1].lower() == "file":
        return local_path(value)
    return StoreUrl.parse(value)


def writable_place(value: str) -> Place:
    """Turn a user's text into a place that export can write to.

    Raises:
        NotAPlace: if it is a URL that cannot be used, or of a web server.
        NotLocal: if it is a file:// URL.
    """
    found = place(value)
    if isinstance(found, StoreUrl) and found.scheme not in WRITABLE:
        raise NotAPlace(
            f"{_beginning(value)} can only be read; write to a folder, s3://, gs:// or az://"
        )
    return found


def check_store_extra(setting: str, url: StoreUrl) -> None:
    """Check that the packages for a store are installed.

    Args:
        setting: what has the URL, with what separates them.
        url: of the store.

    Raises:
        MissingExtra: if they are not.
    """
    extra, packages = EXTRAS.get(url.scheme, ("remote", PACKAGES))
    check_extra(f"{setting}{url}", extra, packages)


def _beginning(url: str) -> str:
    """The scheme, with what separates it."""
    found = SCHEME.match(url)
    return "" if found is None else found[0]
