"""Closed-loop gRPC load from a separate process, for servers of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import grpc
import numpy as np

from loadtests.bench.bodies import Bodies
from loadtests.bench.wrk import TIMEOUT_S, LoadPlan, Run
from loadtests.openloop.sender import Requests
from loadtests.wire import Response
from models.tensors import Array

Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]  # of raw messages
METHOD = "/inference.GRPCInferenceService/ModelInfer"
CHANNELS = 4
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # one connection per channel
OK, FAILED = 200, 500  # as HTTP statuses


def problems(port: int, requests: Requests, due_s: Array) -> list[str | None]:
    """Send requests when due, one at a time; return what is wrong with each answer."""
    began, answers = time.monotonic(), list[Response | None]()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        for due in due_s:
            time.sleep(max(0.0, began + due - time.monotonic()))
            try:
                answers.append(Response(OK, call(requests.draw(), timeout=TIMEOUT_S)))
            except grpc.RpcError as error:
                answers.append(Response(FAILED, str(error).encode()))
    return list(requests.problems(answers))


@contextlib.contextmanager
def loading(port: int, bodies: Bodies, first: int, plan: LoadPlan) -> Iterator[Callable[[], Run]]:
    """Load the server on 127.0.0.1 during the block; call the yielded function to wait for the end.

    Args:
        port: of the server.
        bodies: the requests.
        first: the number of the first request.
        plan: the number of calls in flight, and the time.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        yield pool.submit(_run, port, bodies, first, plan).result


def _run(port: int, bodies: Bodies, first: int, plan: LoadPlan) -> Run:
    return asyncio.run(_loaded(port, bodies, first, plan))


async def _loaded(port: int, bodies: Bodies, first: int, plan: LoadPlan) -> Run:
    latencies_s: list[float] = []
    sent = failed = 0

    async def one(call: Call, until: float) -> None:
        nonlocal sent, failed
        while (began := time.perf_counter()) < until:
            message = bodies.request(first + sent)
            sent += 1
            try:
                await call(message, timeout=TIMEOUT_S)
            except grpc.RpcError:
                failed += 1
            latencies_s.append(time.perf_counter() - began)

    address = f"127.0.0.1:{port}"
    channels = [grpc.aio.insecure_channel(address, OPTIONS) for _ in range(CHANNELS)]
    calls: list[Call] = [channel.unary_unary(METHOD) for channel in channels]
    began = time.perf_counter()
    until = began + plan.seconds
    await asyncio.gather(*(one(calls[at % CHANNELS], until) for at in range(plan.connections)))
    taken = time.perf_counter() - began
    await asyncio.gather(*(channel.close() for channel in channels))
    p50, p99 = (1e3 * float(each) for each in np.percentile(latencies_s, (50, 99)))
    return Run(taken, len(latencies_s), sent, failed, p50, p99)
