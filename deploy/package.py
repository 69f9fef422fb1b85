"""Puts the checkout's packages into one, `torchlane`, as wheels have them.

In a checkout the folders app, models, export and loadtests are packages of their own. In a wheel
they are parts of `torchlane`, because names like these belong to users: what is `from app.types` in
the sources is `from torchlane.app.types` there. Why: docs/adr/0037-one-package.md.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAME = "torchlane"
PARTS = ("app", "models", "export", "loadtests")
HIDDEN = ("__pycache__", "*.so", "*.pyd", ".*")  # names that are not part of the sources
# A module named in a string, as in the catalog: "app.bulk", "app.main:create_app".
MODULE = re.compile(rf"({'|'.join(PARTS)})(\.[a-z_]\w*)+(:\w+)?", re.ASCII)


class PackageError(Exception):
    """A module cannot be moved into the package; the message gives its place and the reason."""


class Insertion(NamedTuple):
    """Text to be inserted at a position: a line from 1, and a column in bytes from 0."""

    line: int
    column: int
    text: bytes


def build(root: Path, folder: Path) -> Path:
    """Create the package in a new folder; return the package's own folder.

    Args:
        root: a checkout, or a part of one that lacks some of the packages.
        folder: does not exist yet.

    Raises:
        PackageError: if git cannot list the files of a checkout, or a module imports in a way that
            cannot be rewritten.
    """
    package = folder / NAME
    for name in _sources(root):
        target = package / name.removeprefix(f"{NAME}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
        if target.match("*.py*"):
            content = rewritten(target.read_bytes(), str(target.relative_to(folder)))
            target.write_bytes(content)
    return package


def _sources(root: Path) -> Iterator[str]:
    """The paths of the packages' files: those that git tracks, or all where there is no git."""
    folders = (NAME, *PARTS)
    if (root / ".git").exists():
        modules = [f"{folder}/*.py" for folder in folders]
        if new := _listed(root, "--others", "--exclude-standard", "--", *modules):
            raise PackageError(
                f"git does not track {', '.join(new)}, so the wheel would lack it: `git add` or "
                "remove it"
            )
        names = [name for name in _listed(root, "--", *folders) if (root / name).exists()]
    else:
        files = (file for folder in folders for file in (root / folder).rglob("*"))
        names = [file.relative_to(root).as_posix() for file in files if file.is_file()]
    for name in names:
        parts = name.split("/")
        if not any(fnmatch.fnmatch(part, hidden) for part in parts for hidden in HIDDEN):
            yield name


def _listed(root: Path, *options: str) -> list[str]:
    """The paths that `git ls-files` lists."""
    # The folder may belong to another user, as in a container that builds wheels.
    command = ["git", "-c", f"safe.directory={root}", "ls-files", "-z", *options]
    try:
        done = subprocess.run(  # nosec B603 # without a shell
            command, cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise PackageError("this is a git checkout, and there is no command git") from error
    if done.returncode:
        raise PackageError(f"git cannot list the files of {root}: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name]


def rewritten(source: bytes, name: str) -> bytes:
    """Return a module's source with the names of modules as they are within the package.

    Args:
        source: in UTF-8.
        name: of its file, for errors.

    Raises:
        PackageError: for an import that cannot be rewritten.
    """
    lines = source.splitlines(keepends=True)
    for each in sorted(_insertions(ast.parse(source, name), name, lines), reverse=True):
        line = lines[each.line - 1]
        lines[each.line - 1] = line[: each.column] + each.text + line[each.column :]
    return b"".join(lines)


def _insertions(tree: ast.Module, name: str, lines: list[bytes]) -> Iterator[Insertion]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_part(node.module):
            yield Insertion(node.lineno, node.col_offset + len("from "), f"{NAME}.".encode())
        elif isinstance(node, ast.Import):
            yield from _imported(node, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            start = lines[node.lineno - 1][node.col_offset : node.col_offset + 1]
            if MODULE.fullmatch(node.value) and start in (b'"', b"'"):
                yield Insertion(node.lineno, node.col_offset + 1, f"{NAME}.".encode())


def _imported(node: ast.Import, name: str) -> Iterator[Insertion]:
    """`import export` becomes `from torchlane import export`, which binds the same name."""
    parts = [each for each in node.names if _is_part(each.name)]
    if not parts:
        return
    if len(node.names) > 1 or "." in parts[0].name:
        raise PackageError(
            f"{name}:{node.lineno}: `{ast.unparse(node)}` would bind another name in a wheel: "
            "write `from PACKAGE import MODULE`"
        )
    yield Insertion(node.lineno, node.col_offset, f"from {NAME} ".encode())


def _is_part(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in PARTS
