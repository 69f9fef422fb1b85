"""Compiles the request path in place: which modules become machine code, and how.

python deploy/machine_code.py PREFIX LEVEL

In the working directory, a copy of the sources that deploy/compile.py has made. PREFIX is the path
of the package that contains them, with a slash; empty in a checkout. LEVEL is that of the C
compiler's optimization.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Everything that a request passes through, except prometheus_client's part and most codecs, which
# leave the work to numpy, Pillow and tokenizers.
COMPILED = (
    "app/access/guard.py",
    "app/api/answering.py",
    "app/api/answers.py",
    "app/api/calls.py",
    "app/api/endpoints.py",
    "app/api/errors.py",
    "app/api/handlers/answering.py",
    "app/api/handlers/call.py",
    "app/api/handlers/streams.py",
    "app/api/instances.py",
    "app/api/invocations/call.py",
    "app/api/json_pieces.py",
    "app/api/memo.py",
    "app/api/memory.py",
    "app/api/native/predictions.py",
    "app/api/oip/answers.py",
    "app/api/oip/handlers.py",
    "app/api/oip/infer.py",
    "app/api/oip/requests.py",
    "app/api/oip/tensors.py",
    "app/api/oip/grpc/call.py",
    "app/api/oip/grpc/frames.py",
    "app/api/oip/grpc/messages.py",
    "app/api/oip/grpc/wire.py",
    "app/api/origins.py",
    "app/api/outcomes.py",
    "app/api/payloads.py",
    "app/api/request_ids.py",
    "app/api/text/body.py",
    "app/api/text/classify.py",
    "app/api/text/embeddings.py",
    "app/api/text/fields.py",
    "app/api/text/rerank.py",
    "app/api/text/root.py",
    "app/api/text/scores.py",
    "app/api/torchserve/predictions.py",
    "app/api/transport/connection.py",
    "app/api/transport/exchange.py",
    "app/api/transport/known_head.py",
    "app/api/transport/parsing.py",
    "app/api/transport/reading.py",
    "app/api/transport/writing.py",
    "app/api/turns.py",
    "app/codecs/answers.py",
    "app/codecs/elements.py",
    "app/codecs/numbers.py",
    "app/engine/admission.py",
    "app/engine/cache.py",
    "app/engine/engine.py",
    "app/engine/batch_runner.py",
    "app/engine/complaints.py",
    "app/engine/keys.py",
    "app/engine/lookups.py",
    "app/engine/batch_cost.py",
    "app/engine/batch_policy.py",
    "app/engine/dispatcher.py",
    "app/engine/observer.py",
    "app/engine/pool.py",
    "app/engine/queue.py",
    "app/engine/timeline.py",
    "app/engine/widening.py",
    "app/engine/singleflight.py",
    "app/engine/submission.py",
    "app/metrics/bound.py",
    "app/metrics/tally.py",
    "app/registry/loaded_models.py",
    "app/telemetry/access_log.py",
    "app/telemetry/gate.py",
    "app/telemetry/line_rate.py",
    "app/telemetry/tracing.py",
    "app/types.py",
)
# Instead of the checkout's settings, because mypy need not check again, nor read 5,000 modules of
# the packages below: a compiled module must not depend on their types, which become Any.
MYPY = """
[mypy]
plugins = pydantic.mypy
ignore_missing_imports = True
[mypy-cryptography.*,huggingface_hub.*,opentelemetry.*,redis.*,rich.*,torch.*,transformers.*]
follow_imports = skip
"""
# Extension modules in C++: app/codecs/name.cpp is compiled to the module app.codecs.name.
NATIVE = ("app/codecs/json_numbers.cpp",)
NATIVE_OF_TORCH = ("models/runtimes/torchscript_file.cpp",)  # with its headers, if it is installed


def build(prefix: str, level: str) -> None:
    """Compile the files below the working directory in place; for arguments see above.

    Raises:
        SystemExit: raised by mypyc and setuptools for any error.
    """
    # Not at the top: tests need the names above alone.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import setup  # noqa: PLC0415

    sources, native, of_torch = (
        [prefix + file for file in files] for files in (COMPILED, NATIVE, NATIVE_OF_TORCH)
    )
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "mypy.ini")
        config.write_text(MYPY)
        made = mypycify(
            [*("--config-file", str(config), "--cache-dir", f"{scratch}/mypy"), *sources],
            group_name=prefix.replace("/", ".") + "torchlane",  # names the shared library
            target_dir=scratch,
            opt_level=level,
            # Half of the C compiler's time, but in a package mypyc does not find its headers.
            multi_file=not prefix,
            debug_level="0",
        )
        made += [_extension(file, "c++17", py_limited_api=True) for file in native]
        made += _of_torch(of_torch)
        setup(
            name="torchlane-compiled",
            packages=[],
            ext_modules=made,
            script_args=[
                *("--quiet", "build_ext", "--inplace", "--parallel=2"),
                *("--build-temp", f"{scratch}/temp", "--build-lib", f"{scratch}/lib"),
            ],
        )


def _extension(file: str, standard: str, **more: Any) -> Any:
    from setuptools import Extension  # noqa: PLC0415

    name = file.removesuffix(".cpp").replace("/", ".")
    flags = [f"-std={standard}", "-O3", "-g0"]
    return Extension(name, [file], language="c++", extra_compile_args=flags, **more)


def _of_torch(files: Sequence[str]) -> list[Any]:
    """The modules that use torch's headers; none without them, or if the compiler is too old."""
    try:
        from torch.utils import cpp_extension  # noqa: PLC0415 # it may not be installed
    except ImportError:
        return []
    more = {
        "include_dirs": cpp_extension.include_paths(),
        "library_dirs": cpp_extension.library_paths(),
        "libraries": ["c10", "torch", "torch_cpu", "torch_python"],
        "optional": True,
    }
    return [_extension(file, "c++20", **more) for file in files]


if __name__ == "__main__":
    if Path("pyproject.toml").exists():
        sys.exit("this is no copy of the sources: run deploy/compile.py, or `make compiled`")
    build(*sys.argv[1:])
