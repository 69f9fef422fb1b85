"""Compiles the request path to machine code with mypyc.

python deploy/compile.py [--required] [--root FOLDER] [--run ARGUMENTS]

deploy/machine_code.py names the modules and compiles them; this file keeps what it has made.
`.compiled` becomes a link to a copy of `app` and `models` that has the compiled modules next to
their sources. Tracebacks show the sources, which behave the same without the modules. The copy is
named by a digest of everything it was built from, so a copy of other sources is never used. For a
wheel, FOLDER has the package that deploy/package.py made.

If compiling fails, one line gives the reason and the fix. Python then runs ARGUMENTS from the copy,
or from the checkout if there is no copy: a process of low priority makes it meanwhile, for the next
start. Background: docs/adr/0011-machine-code.md.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "models")
PACKAGE = "torchlane"  # which contains them in a wheel
# Part of the digest in addition to the packages: versions of libraries, and how it is built.
DIGESTED = ("constraints.txt", "deploy/compile.py", "deploy/machine_code.py")
# Not part of it, and linked from each build: a server does not import the definitions of models.
UNSERVED = ("models/catalog.py", "models/definitions")
BUILDS = ".builds"
KEPT = 4  # builds, for example those of other branches
LINK = ".compiled"
HELD = "constraints.txt"  # in each build: locked while a server runs from it
# Of the C compiler; .ci/run, which measures nothing, sets 0: half of the time.
LEVEL = "0" if os.environ.get("MYPYC_OPT_LEVEL") == "0" else "2"
INSTALL = "install g++ and Python's headers (Debian: apt install g++ python3-dev)"


class CompileError(Exception):
    """There is no machine code; the message gives the reason and the fix."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"{why}. Fix: {fix}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile changed sources; return the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/compile.py")
    parser.add_argument("--required", action="store_true", help="fail without machine code")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="for Python")
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)  # by _begin
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    environment = dict(os.environ)
    try:
        if given.beside and not _is_apart():
            return 0
        folder = served(root) if given.run and not given.required else compiled(root)
        if folder is not None:
            others = [each for each in (environment.get("PYTHONPATH"),) if each]
            environment["PYTHONPATH"] = os.pathsep.join([str(folder), *others])
            environment["PYTHONSAFEPATH"] = "1"  # else packages of the working directory come first
    except CompileError as error:
        if given.required:
            sys.stderr.write(f"compile: {error}\n")
            return 1
        sys.stderr.write(
            "compile: the server runs without machine code, which takes more CPU time for each "
            f"request: {error}\n"
        )
    except KeyboardInterrupt:
        return 130
    if given.run:
        command = [sys.executable, *given.run]
        os.execve(sys.executable, command, environment)  # nosec B606 # as the caller asks
    return 0


def compiled(root: Path) -> Path:
    """Return the folder with the machine code of a checkout's sources; build it if there is none.

    This process, also after an execve, protects the folder from being pruned.

    Raises:
        CompileError: if it cannot be built.
    """
    folder = root / BUILDS / digest(root)
    with _storing(root):
        if not _hold(folder):
            folder.parent.mkdir(exist_ok=True)
            with _one_build(folder.parent):
                if not _hold(folder):  # else another process has built it meanwhile
                    folder = _make(root, folder)
        _use(root, folder)
    return folder


def served(root: Path) -> Path | None:
    """Like `compiled`, for a server that starts: what is not built yet is built beside it.

    Returns:
        None if there is no machine code yet.

    Raises:
        CompileError: if it cannot be built, or that has failed before.
    """
    folder = root / BUILDS / digest(root)
    with _storing(root):
        if _hold(folder):
            with contextlib.suppress(OSError):
                _use(root, folder)
            return folder
        if (failed := _log_of(folder)).exists():
            raise CompileError("compiling these sources has failed before", _fix(failed))
        check_compilers()
        folder.parent.mkdir(exist_ok=True)
        _begin(root)
    sys.stderr.write(
        "compile: this start runs the sources; machine code for the next one is built meanwhile "
        "(about two minutes)\n"
    )
    return None


@contextlib.contextmanager
def _storing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = f"make {root / BUILDS} a folder that this user can write to"
        raise CompileError(f"no build can be stored ({error})", fix) from error


def _use(root: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):  # a folder of another user
        os.utime(folder)
    _link(root, folder)


def _begin(root: Path) -> None:
    """Start a build that outlives this process."""
    command = [sys.executable, __file__, "--root", str(root), "--beside"]
    none = subprocess.DEVNULL
    subprocess.run(  # nosec B603 # this file
        command, stdin=none, stdout=none, stderr=none, check=True, start_new_session=True
    )


def _is_apart() -> bool:
    """Go on in a process of low priority that is not a child of the caller's."""
    if os.fork():
        return False
    os.nice(19)
    return True


def _hold(folder: Path) -> bool:
    """Protect a build from being pruned until this process ends; return whether it exists."""
    with contextlib.suppress(OSError):  # there is none, or its file system has no locks
        handle = os.open(folder / HELD, os.O_RDONLY)
        os.set_inheritable(handle, True)
        fcntl.flock(handle, fcntl.LOCK_SH)
    return folder.exists()  # checked last: it may have been pruned before it was locked


@contextlib.contextmanager
def _one_build(builds: Path) -> Iterator[None]:
    with (builds / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("compile: waiting for another build to end\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link(root: Path, folder: Path) -> None:
    link = root / LINK
    if link.is_symlink() and link.readlink() == folder.relative_to(root):
        return
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # left by an older version
    with tempfile.TemporaryDirectory(dir=root / BUILDS) as scratch:
        (Path(scratch) / LINK).symlink_to(folder.relative_to(root))
        (Path(scratch) / LINK).replace(link)


def digest(root: Path) -> str:
    """Return a digest of all that a server imports, of this Python and torch, and of `LEVEL`."""
    this_python = (sys.version, sysconfig.get_platform(), platform.libc_ver())
    found = hashlib.sha256(repr((*this_python, LEVEL, _torch())).encode())
    for file in _sources(root):
        content = file.read_bytes()
        found.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:32]


def _torch() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _sources(root: Path) -> Iterator[Path]:
    yield from (root / each for each in DIGESTED)
    prefix = _prefix(root)
    for package in PACKAGES:
        for file in sorted((root / prefix / package).rglob("*")):
            hidden = file.name.startswith(".") or "__pycache__" in file.parts
            hidden = hidden or file.relative_to(root / prefix).as_posix().startswith(UNSERVED)
            if file.is_file() and not hidden and file.suffix not in (".so", ".pyd"):
                yield file


def copy_sources(root: Path, copy: Path) -> None:
    """Copy what is compiled or served; links of other modules lead from `.builds/NAME` to here."""
    for file in _sources(root):
        target = copy / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    if prefix := _prefix(root):
        # Not the package's own, of which mypy would read the whole server, extras included.
        (copy / prefix / "__init__.py").touch()
    for name in UNSERVED:
        if (root / name).exists():  # in a checkout
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).symlink_to(Path("../../..") / name)


def _prefix(root: Path) -> str:
    """The path of the package that contains the packages; empty in a checkout."""
    return f"{PACKAGE}/" if (root / PACKAGE / PACKAGES[0]).exists() else ""


def check_compilers() -> None:
    """Check within a moment that the compilers can read Python's headers, before a long build.

    Raises:
        CompileError: if one cannot.
    """
    for variable, language in (("CC", "c"), ("CXX", "c++")):
        _check_compiler(variable, language)


def _check_compiler(variable: str, language: str) -> None:
    command = shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(  # nosec B603 # the compiler that setuptools uses
            [*command, include, "-fsyntax-only", "-x", language, "-"],
            input="#include <Python.h>\n",
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise CompileError(f"there is no compiler {command[0]}", INSTALL) from error
    if done.returncode:
        said = [*done.stderr.splitlines(), "it printed no error"]
        why = next((line for line in said if "error" in line), said[0])
        raise CompileError(f"{shlex.join(command)} cannot read Python.h ({why})", INSTALL)


def _log_of(folder: Path) -> Path:
    """What a compiler printed that failed."""
    return folder.with_suffix(".failed")


def _fix(log: Path) -> str:
    return f"read {log}, then run `make compiled`"


def _make(root: Path, folder: Path) -> Path:
    """Compile a copy of the sources, and name it by its digest once it is complete.

    Raises:
        CompileError: if compiling fails.
    """
    failed = _log_of(folder)
    check_compilers()
    sys.stderr.write("compile: compiling the request path (about two minutes)\n")
    for left in folder.parent.glob("scratch-*"):  # from a killed build
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix="scratch-", dir=folder.parent, ignore_cleanup_errors=True
    ) as scratch:
        copy, log = Path(scratch) / "copy", Path(scratch) / "log"
        copy_sources(root, copy)
        folder = folder.with_name(digest(copy))  # the sources may have changed meanwhile
        command = [sys.executable, str(copy / "deploy/machine_code.py"), _prefix(copy), LEVEL]
        environment = os.environ | {"TMPDIR": scratch}  # deleted even if the compiler is killed
        with log.open("w") as output:
            done = subprocess.run(  # nosec B603 # a file of the checkout
                command, cwd=copy, env=environment, stdout=output, stderr=output, check=False
            )
        if done.returncode:
            log.replace(failed)
            raise CompileError("compiling failed", _fix(failed))
        if not folder.exists():
            copy.rename(folder)
    for failed in folder.parent.glob("*.failed"):
        failed.unlink()
    _hold(folder)
    prune(folder.parent)
    return folder


def prune(builds: Path) -> None:
    """Delete all builds except the newest and those that a server runs from."""
    names = (each for each in builds.iterdir() if re.fullmatch("[0-9a-f]{32}", each.name))
    made = sorted(names, key=lambda each: each.stat().st_mtime)
    for old in made[:-KEPT]:
        with (
            contextlib.suppress(OSError),  # it is in use, or belongs to another user
            (old / HELD).open("r+") as file,
            tempfile.TemporaryDirectory(dir=builds, ignore_cleanup_errors=True) as scratch,
        ):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            old.rename(Path(scratch) / "old")  # never leave half a build at its name


if __name__ == "__main__":
    sys.exit(main())
