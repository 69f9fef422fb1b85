"""Several generator processes: what goes wrong in one is told, and Ctrl-C ends them all at once."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from loadtests.capacity.processes import ManyProcesses
from loadtests.openloop.address import Address
from loadtests.openloop.generator import Limits
from loadtests.openloop.shooting import Shooter, Shot
from loadtests.traffic.drawing import WorkloadError
from loadtests.wire import Response


class Singles:
    """The same request again and again; any answer is right."""

    def draw(self) -> bytes:
        return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

    def problems(self, responses: Sequence[Response | None]) -> list[str | None]:
        return [None for _ in responses]


@dataclass(frozen=True)
class Maker:
    """What another process makes its shooter with."""

    address: Address

    def __call__(self, number: int) -> Shooter:
        return Shooter(self.address, Singles(), "uniform", Limits(8, 90.0))


def refuse(number: int) -> Shooter:
    raise WorkloadError(f"the model takes no such thing, says {number}")


def test_a_shooter_that_cannot_be_made_says_why() -> None:
    with (
        pytest.raises(WorkloadError, match="the model takes no such thing, says 0"),
        ManyProcesses(2, refuse),
    ):
        pytest.fail("entered without shooters")
    assert not multiprocessing.active_children()


def test_ctrl_c_ends_the_load_at_once() -> None:
    """Nobody ever answers, so that the trial would take a minute and its patience."""
    main = threading.main_thread().ident
    assert main is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with ManyProcesses(2, Maker(address)) as gun:

            def interrupt() -> None:
                silent.accept()[0].close()  # the load has begun
                signal.pthread_kill(main, signal.SIGINT)

            began = time.perf_counter()
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                gun.shoot(Shot(10, 1, 60, seed=1))
    assert time.perf_counter() - began < 20
    assert not multiprocessing.active_children()
