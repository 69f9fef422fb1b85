"""`app/codecs/json_numbers.cpp` as machine code, for tests of a checkout that is not compiled."""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from app.codecs.numbers import NATIVE_READER, ReadFloats

SOURCE = Path(__file__).parents[1] / "app/codecs/json_numbers.cpp"
# A compiled file that is taken instead, such as one with sanitizers.
VARIABLE = "JSON_NUMBERS"
CXX = shlex.split(os.environ.get("CXX", "c++"))
HAS_COMPILER = shutil.which(CXX[0]) is not None


@functools.cache
def read_floats() -> ReadFloats:
    """The reader as machine code, compiled now if need be; skips a test without a compiler."""
    if VARIABLE in os.environ:
        return loaded(Path(os.environ[VARIABLE]))
    if NATIVE_READER is not None:
        return NATIVE_READER
    if not HAS_COMPILER:
        pytest.skip(f"no compiler {CXX[0]}")
    with tempfile.TemporaryDirectory() as folder:
        return loaded(compiled(Path(folder)))


def compiled(folder: Path, source: Path = SOURCE, options: Sequence[str] = ()) -> Path:
    """Compile into a folder; returns the module's file.

    Options are for the compiler, not for the linker, which would add a sanitizer's own runtime.
    """
    made, module = folder / "json_numbers.o", folder / "json_numbers.so"
    flags = ["-std=c++17", "-O3", "-fPIC", "-Wall", "-Wextra", "-Werror", *options]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([*CXX, *flags, include, "-c", str(source), "-o", str(made)], check=True)
    subprocess.run([*CXX, "-shared", str(made), "-o", str(module)], check=True)
    return module


def loaded(module: Path) -> ReadFloats:
    """The function of a compiled file."""
    spec = importlib.util.spec_from_file_location("json_numbers", module)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return cast("ReadFloats", made.read)
