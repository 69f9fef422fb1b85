"""Paths that users give: only local ones, because `Path` would turn a URL into a local folder."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

# MLflow writes its own URLs with one slash.
SCHEME = re.compile(
    r"((?:mlflow-artifacts|models|runs)(?=:/)|[A-Za-z][A-Za-z0-9+.-]*(?=://)):/{1,2}"
)


class NotLocal(argparse.ArgumentTypeError, ValueError):
    """A URL was given in place of a path; both argparse and pydantic show the message."""


def check_local(text: str) -> None:
    """Refuse a URL, such as s3://bucket/folder; `./s3://bucket` is a local path.

    Raises:
        NotLocal: naming the scheme only, because the rest may have a password.
    """
    scheme = SCHEME.match(text)
    if scheme is None:
        return
    advice = (
        "leave out file://"
        if scheme[1].lower() == "file"
        else "mount the storage, or copy the files with its own tools"
    )
    raise NotLocal(f"{scheme[0]} is not supported, only local paths are: {advice}")


def local_path(value: str | Path) -> Path:
    """Turn a user's text into a path.

    Raises:
        NotLocal: if it is a URL.
    """
    if isinstance(value, str):
        check_local(value)
    return Path(value)
