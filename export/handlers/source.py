"""Reads what the source of a handler says, without running it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from export.errors import UsageError
from models.handlers import CalledModel

BASE = "Handler"
# Prints the version of Python, and those of the packages that have the modules it is given.
LIST = """
import importlib.metadata as metadata, json, platform, sys
owners = metadata.packages_distributions()
names = sorted({owner for name in sys.argv[1:] for owner in owners.get(name, ())})
print(json.dumps([platform.python_version(), {each: metadata.version(each) for each in names}]))
"""


class Declared(NamedTuple):
    """What a handler's class declares.

    Attributes:
        entry: module and class.
        models: that it calls.
        max_batch_size: 1: it has `predict`.
        description: the first line of its documentation.
    """

    entry: str
    models: tuple[CalledModel, ...]
    max_batch_size: int
    description: str


def read_source(source: Path, entry: str | None, name: str) -> Declared:
    """Find the handler's class in a file, or in the modules of a folder.

    Args:
        source: the file or folder.
        entry: MODULE:CLASS; None: the only class there is.
        name: of the handler, which cannot call itself.

    Raises:
        UsageError: if there is no such class, or several, or it declares no constants.
    """
    _check_names(source)
    classes = dict(_classes(source))
    if entry is None and len(classes) != 1:
        names = ", ".join(classes) or "none"
        raise UsageError(
            f"{source} must have one class that is a torchlane.Handler, got {names}; name it with "
            "--entry MODULE:CLASS"
        )
    entry = entry or next(iter(classes))
    node = classes.get(entry)
    if node is None:
        raise UsageError(
            f"{source} has no class {entry} that is a torchlane.Handler; there are: "
            f"{', '.join(classes) or 'none'}"
        )
    if not entry.isascii() or not all(each.isidentifier() for each in entry.split(":")):
        raise UsageError(
            f"{entry}: the names of the file and the class must be those of Python, in ASCII; "
            "rename them, as in shop:Shop"
        )
    models = _constant(node, "models", ())
    size = _constant(node, "max_batch_size", 1)
    if not isinstance(models, tuple | list) or not all(isinstance(each, str) for each in models):
        raise UsageError(f'{entry}.models must be names, such as ("detector", "classifier/2")')
    if type(size) is not int or not 1 <= size <= 4096:
        raise UsageError(f"{entry}.max_batch_size must be 1 to 4096, got {size!r}")
    text = ast.get_docstring(node) or ""
    called = tuple(_called(entry, each) for each in models)
    every = [each.name for each in called]
    if twice := next((each for each in every if every.count(each) > 1), None):
        raise UsageError(f"{entry}.models names {twice} twice; name each model once")
    if name in every:
        raise UsageError(f"{entry} calls {name}, which is itself; choose another --name")
    return Declared(entry, called, size, text.partition("\n")[0])


class Interpreter(NamedTuple):
    """What runs a handler: the version of Python, and those of the packages that it imports."""

    version: str
    packages: dict[str, str]


def interpreter_of(source: Path, python: str) -> Interpreter:
    """What the source imports, as an interpreter has it installed.

    Raises:
        UsageError: if the interpreter cannot be run.
    """
    names = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for path in _files(source)
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    names -= sys.stdlib_module_names | {"torchlane", ""}
    version, packages = told_by(python, LIST, sorted(names))
    return Interpreter(version, packages)


def told_by(python: str, program: str, names: Sequence[str]) -> Any:
    """What a program prints as JSON, run by the interpreter that will run the handler.

    Args:
        python: the interpreter.
        program: its text.
        names: its arguments.

    Raises:
        UsageError: if the interpreter cannot be run.
    """
    try:
        told = subprocess.run(  # nosec B603 # the interpreter is the user's choice
            [python, "-I", "-c", program, *names], stdout=subprocess.PIPE, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"--python {python} cannot be run: {error}") from error
    return json.loads(told)


def _called(entry: str, text: str) -> CalledModel:
    name, slash, version = text.partition("/")
    try:
        return CalledModel(name=name, version=int(version) if slash else None)
    except ValueError:
        raise UsageError(
            f"{entry}.models has {text!r}; use NAME or NAME/VERSION, such as detector/3"
        ) from None


def _files(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py")) if source.is_dir() else [source]


def _check_names(source: Path) -> None:
    """Refuse modules that `import` would not find.

    Raises:
        UsageError: if one has the name of a module of Python, or of this package.
    """
    for path in sorted(source.glob("*.py")) if source.is_dir() else [source]:
        if path.stem in sys.stdlib_module_names or path.stem == "torchlane":
            raise UsageError(
                f"{path.name} has the name of the module {path.stem} that Python imports instead; "
                "rename it"
            )


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), path.name)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from error


def _classes(source: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(source.glob("*.py")) if source.is_dir() else [source]:
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef) and any(_is_base(base) for base in node.bases):
                yield f"{path.stem}:{node.name}", node


def _is_base(base: ast.expr) -> bool:
    return (isinstance(base, ast.Attribute) and base.attr == BASE) or (
        isinstance(base, ast.Name) and base.id == BASE
    )


def _constant(node: ast.ClassDef, name: str, default: object) -> object:
    """The value of an attribute that the class declares.

    Raises:
        UsageError: if it is not a constant.
    """
    for each in node.body:
        targets = [each.target] if isinstance(each, ast.AnnAssign) else []
        targets = each.targets if isinstance(each, ast.Assign) else targets  # type: ignore[assignment]
        value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        if value is None or name not in [t.id for t in targets if isinstance(t, ast.Name)]:
            continue
        try:
            return ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise UsageError(
                f'{node.name}.{name} must be written as a constant, such as {name} = ("detector",)'
            ) from None
    return default
