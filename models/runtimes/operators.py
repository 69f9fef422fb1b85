"""Operators beyond torch's own, such as those of detectors: loaded by name, from a fixed list.

Only the library with the operators is loaded; no Python code of its package is run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final, NamedTuple, get_args

import torch

from models.manifest import OperatorLibrary
from models.system.archive import read_entries
from models.system.extras import NotInstalled

# How TorchScript's code calls an operator: `ops.torchvision.nms(...)`. Torch's own are in it too.
CALL = re.compile(rb"\bops\.(\w+)\.")


class OperatorPackage(NamedTuple):
    """A package with a library of operators.

    Attributes:
        name: in Python, and of its distribution.
        files: names of the library in the package's folder, in several releases.
        extra: the extra of this project that installs it.
        operator: one that is there once the library is loaded.
    """

    name: str
    files: tuple[str, ...]
    extra: str
    operator: str


PACKAGES: Final[dict[OperatorLibrary, OperatorPackage]] = {
    "torchvision": OperatorPackage("torchvision", ("_C_stable.so", "_C.so"), "vision", "nms"),
}


def load_operators(libraries: Iterable[OperatorLibrary]) -> None:
    """Load libraries of operators into this process; those that are loaded stay as they are.

    Raises:
        NotInstalled: if a package is missing, or does not fit the installed torch.
    """
    for library in libraries:
        package = PACKAGES[library]
        if hasattr(getattr(torch.ops, library), package.operator):
            continue
        path = _path_of(package)
        load: Callable[[str], None] = torch.ops.load_library  # untyped in torch
        try:
            load(str(path))
        except OSError as error:
            version = importlib.metadata.version(package.name)
            raise NotInstalled(
                f"it needs the operators of {package.name}, but {package.name} {version} does not "
                f"fit torch {torch.__version__}: install the release for this torch, from the same "
                f"index ({error})"
            ) from error


def operators_in(file: IO[bytes], what: str, names: Iterable[str]) -> tuple[OperatorLibrary, ...]:
    """Return the libraries whose operators the code of a TorchScript file calls.

    `file` is a checked archive, and `names` are those of its entries.

    Raises:
        ArchiveError: if an entry is damaged.
    """
    code = [name for name in names if name.split("/")[1:2] == ["code"] and name.endswith(".py")]
    libraries: set[bytes] = set()
    for text in read_entries(file, what, code):
        libraries.update(CALL.findall(text))
    return tuple(each for each in get_args(OperatorLibrary) if each.encode() in libraries)


def _path_of(package: OperatorPackage) -> Path:
    spec = importlib.util.find_spec(package.name)  # finds it without running it
    for folder in (spec and spec.submodule_search_locations) or ():
        for name in package.files:
            if (path := Path(folder) / name).is_file():
                return path
    raise NotInstalled(
        f"it needs the operators of {package.name}: pip install 'torchlane[{package.extra}]', of "
        "the release for the installed torch"
    )
