"""The page at / and its files: only what is packaged in `static`.

All addresses in them are relative, so they work behind a proxy that removes a path prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from app.api.static_files import File, policy

POLICY = policy("blob:", "data:")  # for pictures that a user chose or drew
INDEX = "index.html"


def add_files(app: FastAPI) -> None:
    """Serve the page and its files, which are few and small, and read once."""
    there = {
        name: File.of(name, found.read_bytes(), POLICY)
        for name, found in _below(files(__package__) / "static")
    }

    async def index(request: Request) -> Response:
        return there[INDEX].answer(request)

    async def file(request: Request) -> Response:
        found = there.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found.answer(request)

    app.add_route("/", index, include_in_schema=False)
    app.add_route("/page/{name:path}", file, include_in_schema=False)


def _below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Each file below a folder, with its path relative to the folder."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name, each
