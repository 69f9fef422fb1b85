"""Looks up definitions by name; imports a module, and torch, only when its model is requested."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.definitions.definition import Definition

HERE = Path(__file__)
LONGEST = 300  # characters of a cause
PACKAGES = "see 'Packages that a model needs' in docs/bring-your-own-model.md"


class BrokenDefinition(Exception):
    """A definition cannot be used; the message names the file, the line and the cause."""


class Definitions(Mapping[str, "Definition"]):
    """Name -> definition; each module is imported when its name is looked up.

    Args:
        modules: name -> the module with its `DEFINITION`.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)

    def __getitem__(self, name: str) -> Definition:
        """Import a definition.

        Raises:
            KeyError: if there is no such name.
            BrokenDefinition: if the module cannot be imported, or has no definition. The
                definition's own functions raise it too when they fail.
        """
        return _import(name, self._modules[name])

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _import(name: str, module: str) -> Definition:
    # Not at the top: it imports torch, and a command line needs only names.
    from models.definitions.definition import Definition  # noqa: PLC0415

    file = _file_of(module)
    if file is None:
        raise BrokenDefinition(
            f"the catalog says that {name!r} is in {module}, which does not exist"
        )
    problem = f"the definition of {name!r} cannot be imported"
    try:
        definition = getattr(importlib.import_module(module), "DEFINITION", None)
    except (Exception, SystemExit) as error:  # anything from the module or its imports
        raise BrokenDefinition(f"{problem}: {_cause(error, file)}") from error
    if not isinstance(definition, Definition):
        what = (
            "has no DEFINITION"
            if definition is None
            else f"has a {type(definition).__name__} there"
        )
        raise BrokenDefinition(f"{_short(file)} {what}; it needs DEFINITION = Definition(...)")
    functions: dict[str, Any] = {
        field.name: _with_clear_errors(
            f"{field.name} of the definition of {name!r} fails", value, file
        )
        for field in fields(definition)
        if callable(value := getattr(definition, field.name))
    }
    return replace(definition, **functions)


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the parent package is missing
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _with_clear_errors(what: str, function: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """Wrap a function so that its errors become one sentence."""
    from models.definitions.training import Diverged  # noqa: PLC0415 # torch, like the function

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Diverged:
            raise
        except Exception as error:  # a definition's own code may raise anything
            raise BrokenDefinition(f"{what}: {_cause(error, file)}") from error

    return call


def _cause(error: BaseException, file: Path) -> str:
    """Return cause, file and the definition's innermost line in the traceback, in one line."""
    from pydantic import ValidationError  # noqa: PLC0415 # the definition has imported it

    text = str(error)
    if isinstance(error, ValidationError):  # its own text has several lines and a link
        text = error.errors(include_url=False)[0]["msg"]
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        text = error.msg
        places.append((Path(error.filename), error.lineno))
    own = [each for each in places if each[0].parent == file.parent and each[0] != HERE]
    where = f"{_short(own[-1][0])}, line {own[-1][1]}" if own else _short(file)
    text = " ".join(text.split())
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
    cause = f"{type(error).__name__}: {text}".removesuffix(": ")
    return f"{where}: {cause}" + (f"; {PACKAGES}" if isinstance(error, ImportError) else "")


def _short(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
