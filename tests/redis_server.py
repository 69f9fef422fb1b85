"""A real Redis of a test's own, on a socket in its folder; it keeps nothing on disk."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from app.shared_cache.address import Address

START_LIMIT_S = 20.0

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="there is no redis-server (apt: redis-server)"
)


class RedisServer:
    """Started at once; the caller ends it.

    Args:
        folder: short, since paths of sockets are.
        options: more of its command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.path = folder / "redis.sock"
        self._command = [
            *("redis-server", "--port", "0", "--unixsocket", str(self.path), "--save", ""),
            *("--appendonly", "no", "--dir", str(folder), "--loglevel", "warning", *options),
        ]
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, also where it is paused."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def ask(self, *command: str | bytes) -> Any:
        """The answer to one command."""
        link = await Address(self.url).connect(lambda why: None)
        try:
            return await link.ask(*command)
        finally:
            link.close()

    async def keys(self) -> list[bytes]:
        """Of predictions."""
        found: list[bytes] = await self.ask("KEYS", "torchlane:*")
        return [key for key in found if not key.endswith(b"probe")]

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.path))
            except OSError:
                return False
            return True


async def soon(
    condition: Callable[[], bool] | Callable[[], Coroutine[Any, Any, bool]], limit_s: float = 20.0
) -> None:
    """Return once it is so."""
    async with asyncio.timeout(limit_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)
