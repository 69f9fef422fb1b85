"""Compiles the request path of an installed server with mypyc, and its C++, in place.

python deploy/compile.py FOLDER

FOLDER holds the packages `app` and `models`, as `pip install --target` leaves them. The sources
stay next to the compiled modules: tracebacks show them, and without the modules they run just the
same. Needs a C compiler and Python's headers. Why: docs/adr/0011-machine-code.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parents[1]
# Everything that a request passes, except what belongs to prometheus_client, and most codecs, whose
# work is done by numpy, Pillow and tokenizers.
COMPILED = (
    "app/access/guard.py",
    "app/api/bodies.py",
    "app/api/calls.py",
    "app/api/endpoints.py",
    "app/api/errors.py",
    "app/api/memo.py",
    "app/api/native/predictions.py",
    "app/api/native/replies.py",
    "app/api/oip/answers.py",
    "app/api/oip/infer.py",
    "app/api/oip/requests.py",
    "app/api/oip/tensors.py",
    "app/api/oip/grpc/call.py",
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
    "app/api/text/scores.py",
    "app/api/torchserve/predictions.py",
    "app/api/transport/closing.py",
    "app/api/transport/connection_limits.py",
    "app/api/transport/exchange.py",
    "app/api/transport/known_head.py",
    "app/api/transport/protocol.py",
    "app/api/transport/uvicorn_adapter.py",
    "app/codecs/answers.py",
    "app/codecs/numbers.py",
    "app/engine/admission/admission.py",
    "app/engine/admission/read_lag.py",
    "app/engine/admission/rejection_cache.py",
    "app/engine/cache.py",
    "app/engine/engine.py",
    "app/engine/execution/batch_runner.py",
    "app/engine/execution/complaints.py",
    "app/engine/keys.py",
    "app/engine/scheduling/batch_cost.py",
    "app/engine/scheduling/batch_policy.py",
    "app/engine/scheduling/completion.py",
    "app/engine/scheduling/cost_curves.py",
    "app/engine/scheduling/dispatcher.py",
    "app/engine/scheduling/in_flight.py",
    "app/engine/scheduling/model_queue.py",
    "app/engine/scheduling/queue.py",
    "app/engine/scheduling/timeline.py",
    "app/engine/scheduling/track.py",
    "app/engine/scheduling/widening.py",
    "app/engine/singleflight.py",
    "app/engine/submission.py",
    "app/engine/waiters.py",
    "app/metrics/bound.py",
    "app/metrics/tally.py",
    "app/registry/loaded_models.py",
    "app/telemetry/tracing.py",
    "app/types.py",
)
# Extension modules in C++: app/codecs/name.cpp is compiled to the module app.codecs.name.
NATIVE = ("app/codecs/json_numbers.cpp",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/compile.py")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="holds app and models")
    folder: Path = parser.parse_args(arguments).folder.resolve()
    missing = [file for file in (*COMPILED, *NATIVE) if not (folder / file).is_file()]
    if missing:
        sys.stderr.write(f"compile: {folder} lacks {', '.join(missing)}\n")
        return 2
    told = io.StringIO()
    try:
        # The C compiler would print thousands of lines.
        with contextlib.chdir(folder), contextlib.redirect_stdout(told):
            _build()
    except SystemExit as error:  # raised by mypyc and setuptools for any error
        sys.stderr.write(f"{told.getvalue()[-4000:]}\ncompile: failed: {error}\n")
        return 1
    made = sorted(folder.glob("app/**/*.so"))
    sys.stdout.write(f"compiled {len(made)} modules in {folder}\n")
    return 0


def _build() -> None:
    """Compile the files, which are below the working directory."""
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", f"{scratch}/mypy"]
        made = mypycify(
            [*options, *COMPILED],
            group_name="torchlane",
            target_dir=scratch,
            opt_level="3",
            debug_level="0",
        )
        made += [
            Extension(
                file.removesuffix(".cpp").replace("/", "."),
                [file],
                language="c++",
                extra_compile_args=["-std=c++17", "-O3", "-g0"],
                py_limited_api=True,
            )
            for file in NATIVE
        ]
        setup(
            name="torchlane-compiled",
            packages=[],
            ext_modules=made,
            script_args=[
                *("--quiet", "build_ext", "--inplace"),
                *("--build-temp", f"{scratch}/temp", "--build-lib", f"{scratch}/lib"),
            ],
        )


if __name__ == "__main__":
    sys.exit(main())
