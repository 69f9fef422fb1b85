"""Probes in a separate process: a model that crashes or hangs ends only that process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from export.errors import UsageError
from export.probing.examples import Examples, Shapes, bytes_of
from export.probing.probing import BUDGET_S, Findings, Prober
from export.reading.declared import DeclaredInput
from export.reading.model_files import load
from models.system.quiet import DEPRECATIONS, ignore_warnings
from models.system.resources import memory_left_bytes

LIMIT_S = BUDGET_S + 30.0  # includes the time to import torch
COPIES = 4  # of the file that must fit into memory: bytes and a model, in both processes
MAX_EXAMPLES_BYTES = 64 << 20  # that are passed to the process
MAX_MEMORY_BYTES = 4 << 30  # for the model while it is probed


def learn(
    data: bytes,
    what: str,
    inputs: Sequence[DeclaredInput],
    shapes: Sequence[Shapes],
    limit_s: float = LIMIT_S,
    *,
    examples: Examples | None = None,
) -> Findings:
    """Learn about a model's inputs by running it.

    Args:
        data: the model's file.
        what: its name, for messages.
        inputs: as declared.
        shapes: of items on which it ran.
        limit_s: time limit.
        examples: real inputs; None: samples are random.

    Raises:
        UsageError: if it does not accept the declared inputs.
    """
    findings = Findings(tuple(inputs))
    if not any(each.free or each.dtype.startswith("int") or each.range for each in inputs):
        return findings
    free_bytes = memory_left_bytes()
    if free_bytes is not None and free_bytes < COPIES * len(data):
        return Findings(tuple(inputs), ("limits were not probed: too little memory is left",))
    if examples is not None:
        examples = Examples(tuple(examples.golden()))
        if sum(map(bytes_of, examples.items)) > MAX_EXAMPLES_BYTES:
            return Findings(tuple(inputs), ("limits were not probed: the examples are too large",))
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_probe,
        args=(theirs, data, what, tuple(inputs), tuple(shapes), examples),
        daemon=True,
    )
    process.start()
    theirs.close()
    try:
        return _receive(ours, process, findings, limit_s)
    finally:
        ours.close()
        process.kill()
        process.join()


def _receive(
    ours: Connection, process: BaseProcess, findings: Findings, limit_s: float
) -> Findings:
    """Return the last message of the process; unfinished findings stay open."""
    ends_at = time.monotonic() + limit_s
    while ours.poll(max(0.0, ends_at - time.monotonic())):
        try:
            message = ours.recv()
        except (EOFError, OSError):  # the latter in the middle of a message
            process.join()
            return _cut_short(findings, f"the model ended the process ({_why(process.exitcode)})")
        if isinstance(message, UsageError):
            raise message
        if message is None:
            return findings
        findings = message
    return _cut_short(findings, f"it took more than {limit_s:g} s")


def _cut_short(findings: Findings, why: str) -> Findings:
    trying = findings.trying or "anything"
    note = (
        f"{why} while {trying} was tried: that and everything after it is left open; give what you "
        "know with --input, such as 1<=n<=512 for a size or in 0..30521 for integers"
    )
    return Findings(findings.inputs, (*findings.notes, note))


def _why(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _probe(
    pipe: Connection,
    data: bytes,
    what: str,
    inputs: tuple[DeclaredInput, ...],
    shapes: tuple[Shapes, ...],
    examples: Examples | None,
) -> None:
    """Run in the process; send each new finding, and None at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    for each in DEPRECATIONS:
        ignore_warnings(message=each)
    module = load(data, what)
    _bound_memory()
    try:
        Prober(module, inputs, shapes, pipe.send, examples).learn()
    except UsageError as error:
        pipe.send(error)
    pipe.send(None)


def _bound_memory() -> None:
    """Make allocations beyond the limit fail, if the system supports that."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415  # not on all systems

    free_bytes = memory_left_bytes()
    room = MAX_MEMORY_BYTES if free_bytes is None else min(MAX_MEMORY_BYTES, free_bytes // 2)
    with open("/proc/self/statm", encoding="ascii") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + room, resource.RLIM_INFINITY))
