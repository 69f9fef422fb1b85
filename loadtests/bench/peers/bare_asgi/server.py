"""The baseline: the cost of HTTP alone under uvicorn. Reads the whole body and answers `{}`."""

from __future__ import annotations

import os

import uvicorn
from starlette.types import Receive, Scope, Send

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(os.environ["BENCH_PORT"]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
