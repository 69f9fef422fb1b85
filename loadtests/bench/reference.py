"""`python -m loadtests.bench.reference FOLDER`: right answers, by the plain script, in a process.

Reads batches on stdin and writes their scores on stdout, both as `framed` describes. Every server's
answers are compared with these, also ours: by the model as export wrote it, not by its plan.
"""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from models.tensors import Array

CHUNK = 64  # items of one forward
LENGTH = struct.Struct("<Q")


def write_framed(stream: BinaryIO, array: Array) -> None:
    """An array as .npy, after its length in eight bytes."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    stream.write(LENGTH.pack(content.tell()))
    stream.write(content.getbuffer())
    stream.flush()


def read_framed(stream: BinaryIO) -> Array | None:
    """What `write_framed` wrote; None at the end of the stream.

    Raises:
        EOFError: if the stream ends within an array.
    """
    head = stream.read(LENGTH.size)
    if not head:
        return None
    length = LENGTH.unpack(head)[0]
    content = stream.read(length)
    if len(content) < length:
        raise EOFError(f"{len(content)} of {length} bytes came")
    array: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def main(folder: Path) -> int:
    """Answer until stdin ends."""
    from loadtests.bench.peers.model import Model  # noqa: PLC0415  # torch: in this process only

    model = Model(folder, "script")
    write_framed(sys.stdout.buffer, np.zeros(0, np.float32))  # ready
    while (batch := read_framed(sys.stdin.buffer)) is not None:
        parts = [model.scores(batch[at : at + CHUNK]) for at in range(0, len(batch), CHUNK)]
        write_framed(sys.stdout.buffer, np.concatenate(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
