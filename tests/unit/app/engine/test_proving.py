"""On a CPU a model proves itself in a thread of its own; what serves keeps its replica."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from app.backends.base import Backend, Between
from app.backends.fake import FakeBackend
from app.engine.replica import Replica, ReplicaState
from app.errors import ReplicaError, ReplicaHangs
from app.threads import NICENESS
from app.types import Device, ModelId
from tests.unit.app.engine.harness import until

OLD, NEW = ModelId("m", 1), ModelId("m", 2)


class Proof:
    """A proof that takes a step, and goes on when the test wants."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread = 0

    def __call__(self, _: Backend, between: Between) -> None:
        between()
        self.thread = threading.get_native_id()
        self.begun.set()
        assert self.go_on.wait(30.0)
        between()


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(OLD, FakeBackend)
    yield replica
    if replica.state is not ReplicaState.CLOSED:
        assert await replica.close(5.0)


@pytest.fixture
async def proof() -> AsyncIterator[Proof]:
    proof = Proof()
    yield proof
    proof.go_on.set()


async def run(replica: Replica) -> int:
    """A batch of the model that serves; returns the thread that ran it."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.start(OLD, lambda _: threading.get_native_id(), done.set_result, lambda _: -1)
    async with asyncio.timeout(30):
        return await done


async def begin(replica: Replica, backend: FakeBackend, proof: Proof) -> asyncio.Task[None]:
    """An installation that has come as far as its proof."""
    installing = asyncio.create_task(replica.install(NEW, lambda: backend, proof))
    await asyncio.to_thread(proof.begun.wait)
    return installing


async def test_batches_run_during_a_proof(replica: Replica, proof: Proof) -> None:
    installing = await begin(replica, FakeBackend(), proof)
    assert await run(replica) not in (-1, proof.thread)
    assert not replica.serves(NEW)
    proof.go_on.set()
    await installing
    assert replica.serves(NEW)
    assert replica.proving is not None
    assert replica.proving.step is None


class Threads:
    """Proofs that record their threads, and may fail."""

    def __init__(self) -> None:
        self.used: list[threading.Thread] = []
        self.error: Exception | None = None

    def __call__(self, _: Backend, __: Between) -> None:
        self.used.append(threading.current_thread())
        if self.error is not None:
            raise self.error


async def test_proofs_run_in_one_thread_until_one_fails(replica: Replica) -> None:
    proof = Threads()
    await replica.install(NEW, FakeBackend, proof)
    proof.error = ValueError("wrong answer")
    with pytest.raises(ValueError, match="wrong answer"):
        await replica.install(NEW, FakeBackend, proof)
    proof.error = None
    await replica.install(NEW, FakeBackend, proof)
    first, second, third = proof.used
    assert first is second is not third
    await until(lambda: not first.is_alive())
    assert third.is_alive()
    assert await replica.close(5.0)
    await until(lambda: not third.is_alive())


async def test_idle_thread_for_proofs_ends(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.replica.KEEP_S", 0.01)
    proof = Threads()
    await replica.install(NEW, FakeBackend, proof)
    await until(lambda: not proof.used[0].is_alive())
    assert replica.proving is None
    await replica.install(NEW, FakeBackend, proof)


@pytest.mark.parametrize("give_up", [Replica.give_up_proof, Replica.give_up_thread])
async def test_a_proof_runs_after_a_thread_was_given_up(
    replica: Replica, give_up: Callable[[Replica, ReplicaError], object]
) -> None:
    proof = Threads()
    await replica.install(NEW, FakeBackend, proof)
    give_up(replica, ReplicaHangs("it hangs"))
    await replica.install(NEW, FakeBackend, proof)
    assert proof.used[0] is not proof.used[1]
    await until(lambda: replica.lost_threads == 0)


async def test_failed_check_prevents_the_installation(replica: Replica) -> None:
    backend = FakeBackend()

    def check(_: Backend, __: Between) -> None:
        raise ValueError("wrong answer")

    with pytest.raises(ValueError, match="wrong answer"):
        await replica.install(NEW, lambda: backend, check=check)
    assert backend.calls == ["close"]
    assert not replica.serves(NEW)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
async def test_only_the_proof_runs_at_lower_priority(replica: Replica, proof: Proof) -> None:
    loading: list[int] = []

    def load() -> Backend:
        loading.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return FakeBackend()

    installing = asyncio.create_task(replica.install(NEW, load, proof))
    await asyncio.to_thread(proof.begun.wait)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert loading == [usual]  # runtimes start threads there that serve
    assert os.getpriority(os.PRIO_PROCESS, proof.thread) == min(19, usual + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, await run(replica)) == usual
    proof.go_on.set()
    await installing


async def test_replica_serves_after_a_hanging_proof(replica: Replica, proof: Proof) -> None:
    backend = FakeBackend()
    installing = await begin(replica, backend, proof)
    assert replica.proving is not None
    assert replica.proving.step is not None
    replica.give_up_proof(ReplicaHangs("it hangs"))
    with pytest.raises(ReplicaHangs):
        await installing
    assert replica.lost_threads == 1
    assert replica.state is ReplicaState.READY
    await run(replica)
    proof.go_on.set()  # it comes back, and cleans up
    await until(lambda: replica.lost_threads == 0)
    assert backend.calls == ["close"]


async def test_hanging_replica_does_not_blame_the_proof(replica: Replica, proof: Proof) -> None:
    backend = FakeBackend()
    installing = await begin(replica, backend, proof)
    replica.give_up_thread(ReplicaHangs("it hangs"))
    with pytest.raises(ReplicaError) as failed:
        await installing
    proof.go_on.set()
    await until(lambda: backend.calls == ["close"])
    assert not isinstance(failed.value, ReplicaHangs)
