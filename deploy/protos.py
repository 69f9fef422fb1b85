"""Generates the Python modules of the gRPC interface from its .proto file.

python deploy/protos.py [--check]

--check writes nothing: exit code 1 means that the modules do not match the .proto file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTO = Path("app/api/oip/grpc/protos/inference.proto")  # its name in the descriptors too


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate or check the modules; return the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/protos.py")
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    check: bool = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"--proto_path={ROOT}", f"--python_out={scratch}", f"--pyi_out={scratch}"]
        if protoc.main(["protoc", *options, str(PROTO)]):
            return 2  # protoc has printed the reason
        made = {PROTO.parent / each.name: each for each in Path(scratch, PROTO.parent).iterdir()}
        wrong = [name for name, file in made.items() if _text(ROOT / name) != file.read_text()]
        if not check:
            for name in wrong:
                (ROOT / name).write_text(made[name].read_text())
            return 0
    for name in wrong:
        sys.stderr.write(f"{name} does not match {PROTO.name}: run `make protos`\n")
    return 1 if wrong else 0


def _text(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


if __name__ == "__main__":
    sys.exit(main())
