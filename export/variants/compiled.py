"""`compiled`: a `.pt2` package by torch.export and AOTInductor, with a free batch axis."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from export.artifact import write_file
from export.errors import NO_SPACE, ExportError, reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.programs import program_of, quiet
from export.variants.torchscript import in_python
from models.choices import Precision
from models.manifest import NativeCode
from models.processor import DeviceKind, cpu_flags, machine
from models.system.memory_files import memory_file

# x86-64 levels (psABI) of GCC and Clang: code for a level runs on every CPU that supports it, while
# code for exactly this machine would run on few others. Best first.
X86_LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"),
}


@dataclass(frozen=True, slots=True)
class AotInductor:
    """Makes a package of AOTInductor for one kind of device."""

    kind: DeviceKind
    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        """Takes seconds to minutes, and needs a C++ compiler."""
        if self.kind == "cuda" and not torch.cuda.is_available():
            raise NotApplicable("it is compiled on a CUDA device, and there is none")
        subject = in_python(subject)
        compiler = find_compiler()
        file = "compiled.pt2" if self.kind == "cpu" else f"compiled-{self.kind}.pt2"
        try:
            with quiet():
                march, native = self._target()
                _compile(program_of(subject, self.kind), march, folder / file)
        except ExportError:
            raise
        except Exception as error:  # torch.export and its compiler raise many classes
            full = isinstance(error, OSError) and error.errno in NO_SPACE
            if full or "No space left" in str(error):
                where = tempfile.gettempdir()
                raise ExportError(f"cannot compile: no space left in {where}") from error
            raise NotApplicable(f"torch.export or AOTInductor failed: {reason(error)}") from error
        made_by = f"torch.export + AOTInductor (freezing, {march or 'native'}, {compiler})"
        return Draft(file, made_by, (self.kind,), native, format="aotinductor")

    def _target(self) -> tuple[str | None, NativeCode]:
        """Return the compiler target: -march, and the code's requirements on a machine."""
        if self.kind == "cuda":
            major, minor = torch.cuda.get_device_capability()
            return None, NativeCode(architecture=machine(), requires=(f"sm_{major}{minor}",))
        flags = cpu_flags()
        level = next((name for name, needs in X86_LEVELS.items() if flags >= set(needs)), None)
        if machine() != "x86_64" or level is None or not _has_levels():
            return None, NativeCode(architecture=machine(), requires=tuple(sorted(flags)))
        lower = X86_LEVELS["x86-64-v3"] if level == "x86-64-v4" else ()
        requires = {*X86_LEVELS[level], *lower, *_vector_flags(flags)}
        return level, NativeCode(architecture=machine(), requires=tuple(sorted(requires)))


def find_compiler() -> str:
    """Test the C++ compiler that torch would use, and return its name.

    Raises:
        NotApplicable: if there is none, or it does not work.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415 - slow
    from torch._inductor.exc import InvalidCxxCompiler  # noqa: PLC0415

    try:
        compiler = get_cpp_compiler()
    except (InvalidCxxCompiler, OSError) as error:
        problem = "the program in CXX does not run" if os.environ.get("CXX") else "there is none"
        raise NotApplicable(
            f"it needs a C++ compiler and {problem}; install g++ or clang++, or set CXX to one"
        ) from error
    name = Path(compiler).name
    with tempfile.TemporaryDirectory() as folder:
        # If this fails, torch fails too, later and less clearly.
        command = [compiler, "-x", "c++", "-shared", "-fPIC", "-o", f"{folder}/tried.so", "-"]
        result = subprocess.run(  # nosec B603 # the caller chooses the compiler
            command, input="#include <cmath>\n", capture_output=True, text=True, check=False
        )
    if result.returncode != 0:
        why = reason(RuntimeError(f"C++ compile error\n{result.stderr}"))
        raise NotApplicable(f"it needs a C++ compiler and {name} does not work: {why}")
    return name


def _vector_flags(flags: frozenset[str]) -> set[str]:
    """Return the instruction sets that torch's code generator requests, in Linux's spelling.

    It requests `-mavx512vnni`, which Linux calls `avx512_vnni`.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # noqa: PLC0415 - slow

    sets = re.findall(r"-m([a-z0-9-]+)", pick_vec_isa().build_arch_flags())
    plain = {re.sub("[-_]", "", flag): flag for flag in flags}
    return {plain[re.sub("[-_]", "", name)] for name in sets if re.sub("[-_]", "", name) in plain}


def _has_levels() -> bool:
    """Whether this torch can compile for a level; torch 2.11 compiles only for this machine."""
    from torch._inductor import config  # noqa: PLC0415 - slow

    return hasattr(config.cpp, "march")


def _compile(program: torch.export.ExportedProgram, march: str | None, file: Path) -> None:
    from torch._inductor import aoti_compile_and_package, config  # noqa: PLC0415 - slow

    options: dict[str, Any] = {
        "freezing": True,
        # Serial code: replicas are the threads of a server, and the code must not depend on this
        # machine's number of cores.
        "cpp.threads": 1,
        # Precompiled headers take 24 s, and save 3 s of each later compilation.
        "aot_inductor.precompile_headers": False,
        # Beside the library, which is never unloaded: so weights are freed with the model.
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "binary_blob",
    }
    target = {} if march is None else {"cpp.march": march}  # None is the default: this machine
    with memory_file() as (package, _):
        with config.patch(target):  # the call itself does not accept it
            aoti_compile_and_package(program, package_path=package, inductor_configs=options)
        write_file(file, package)
