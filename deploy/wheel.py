"""A build hook for hatchling: the contents of wheels, with machine code if there is a compiler.

deploy/package.py makes one package of the sources; deploy/compile.py compiles modules of that one.

TORCHLANE_PURE=1 always builds a pure Python wheel; with TORCHLANE_PURE=0 the build fails instead.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the build frontend does not do this
from deploy.compile import BUILDS, DIGESTED, CompileError, check_compilers, compiled  # noqa: E402
from deploy.package import NAME, build  # noqa: E402

PURE = os.environ.get("TORCHLANE_PURE")
COMPILERS = {"mypy", "setuptools"}
WITHOUT = {"torch"}  # a dependency whose types no compiled module uses


class BuildHook(BuildHookInterface[Any]):
    """Adds the package, and the machine code of its modules."""

    def dependencies(self) -> list[str]:
        """Return the pins of the compilers and of the packages whose types they read."""
        try:
            check_compilers()
        except CompileError:
            return []
        needed = {_name(each) for each in self.metadata.core.dependencies} | COMPILERS
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        return [each for each in pins if _compiles() and _name(each) in needed - WITHOUT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See `BuildHookInterface`."""
        if version == "editable":
            return
        kept = ROOT / BUILDS / "wheel"  # machine code is kept, for the next wheel
        kept.mkdir(parents=True, exist_ok=True)
        # Its own, because another build may run now.
        self._scratch = tempfile.TemporaryDirectory(prefix="wheel-", dir=kept.parent)
        folder = Path(self._scratch.name)
        (folder / BUILDS).symlink_to(kept)
        build_data["force_include"][str(build(ROOT, folder))] = NAME
        if not _compiles():
            return
        for file in DIGESTED:
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / file, folder / file)
        try:
            machine_code = compiled(folder)
        except CompileError as error:
            if PURE == "0":
                raise
            self.app.display_warning(f"a wheel without machine code: {error}")
            return
        modules = [file for each in ("*.so", "*.pyd") for file in machine_code.rglob(each)]
        names = {str(file): str(file.relative_to(machine_code)) for file in modules}
        build_data["force_include"].update(names)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See `BuildHookInterface`."""
        if version != "editable":
            self._scratch.cleanup()


def _compiles() -> bool:
    return PURE != "1" and (ROOT / "app").exists()  # images without a server have no app


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
