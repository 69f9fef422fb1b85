"""Files without a name, which the processes of a server share by their descriptors.

On Linux they are in memory (memfd). Elsewhere, or if the kernel refuses, they are unnamed files in
the temporary folder. The kernel removes them with the last process, however that ends. They are
read and written with calls and never mapped: a mapped file on a full disk would end the process
with SIGBUS.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator

MFD_NOEXEC_SEAL = 8  # linux/memfd.h, since 6.3: older kernels refuse it, newer ones may require it
HEAD = struct.Struct("<QI")  # of a content: its length and CRC-32


class SharedFile:
    """One file; has either one content, or parts at offsets that its users know.

    Args:
        descriptor: of `create`, here or in another process; owned by this object.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._threads = threading.Lock()

    @classmethod
    def create(cls) -> SharedFile:
        """Create an empty file.

        Raises:
            OSError: if there is no memory for it, nor a temporary folder.
        """
        return cls(_new_descriptor())

    def close(self) -> None:
        """Close the descriptor; the other processes keep theirs."""
        os.close(self.descriptor)

    def read(self) -> bytes:
        """Everything that was written, also if the file grows meanwhile."""
        size = os.fstat(self.descriptor).st_size
        while len(data := os.pread(self.descriptor, size + 1, 0)) > size:
            size = 2 * len(data)
        return data

    def write(self, data: bytes, at: int = 0) -> None:
        """Write data at an offset.

        Raises:
            OSError: if the file is not in memory, and its disk is full.
        """
        while written := os.pwrite(self.descriptor, data, at):
            data, at = data[written:], at + written

    def content(self) -> bytes | None:
        """What was last put; None if nothing was, or if it is being replaced at this moment."""
        data = self.read()
        if len(data) < HEAD.size:
            return None
        length, checksum = HEAD.unpack_from(data)
        content = data[HEAD.size : HEAD.size + length]
        return content if zlib.crc32(content) == checksum else None

    def put(self, content: bytes) -> None:
        """Replace the content; nothing is left of a longer one."""
        self.write(HEAD.pack(len(content), zlib.crc32(content)) + content)
        os.ftruncate(self.descriptor, HEAD.size + len(content))

    @contextlib.contextmanager
    def locked(self, *, waits: bool) -> Iterator[None]:
        """Hold the file's lock; that of a process that ends is released.

        Raises:
            BlockingIOError: if another holds it and this call does not wait.
        """
        if not self._threads.acquire(blocking=waits):
            raise BlockingIOError("another thread of this process holds the lock")
        try:  # the kernel's lock belongs to the whole process
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()


def _new_descriptor() -> int:
    if hasattr(os, "memfd_create"):
        for flags in (MFD_NOEXEC_SEAL, 0):
            with contextlib.suppress(OSError):
                return os.memfd_create("torchlane", os.MFD_CLOEXEC | flags)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
