"""Runs the checks of one client in its own environment, which has no pytest."""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

PREFIX = "check_"


def run_checks(module: Mapping[str, object], *arguments: object) -> None:
    """Run all functions whose names begin with `check_`, and exit with 1 if one of them fails."""
    checks = {name: each for name, each in module.items() if name.startswith(PREFIX)}
    failed = 0
    for name, check in checks.items():
        try:
            found: Any = check(*arguments) if callable(check) else None
            if inspect.iscoroutine(found):
                asyncio.run(found)
        except Exception:
            failed += 1
            print(f"{name}:\n{traceback.format_exc()}")  # noqa: T201
    print(f"{len(checks)} checks, {failed} failed")  # noqa: T201
    sys.exit(1 if failed or not checks else 0)


class Synchronous:
    """An asynchronous client behind the calls of its synchronous sister."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(self._made(make))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client, name)
        return lambda *given, **named: self._loop.run_until_complete(call(*given, **named))

    @staticmethod
    async def _made(make: Callable[[], Any]) -> Any:
        return make()
