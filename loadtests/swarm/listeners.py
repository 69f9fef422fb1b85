"""Locust event listeners for a run: arguments, preparation, shapes and gates.

The master queries the idle server before any user starts, and sends the answers to its workers. A
worker that cannot use them, or drops out, fails the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import gevent
from locust import LoadTestShape
from locust.runners import MasterRunner, WorkerRunner

from loadtests.errors import LoadTestError
from loadtests.swarm import gates, shapes
from loadtests.swarm.prepared import Preparation, from_message, obstacle, prepare
from loadtests.traffic.target import TargetError

PREPARED_MESSAGE = "torchlane_prepared"  # master to workers: `Preparation.message`
FAILED_MESSAGE = "torchlane_unprepared"  # worker to master: why it cannot load
log = logging.getLogger(__name__)


def listen(events: Any) -> None:
    """Register the listeners with Locust's `events`, once per locustfile."""
    around = _Around()
    events.init_command_line_parser.add_listener(_add_arguments)
    for name in ("init", "test_start", "worker_connect", "test_stopping", "quitting"):
        getattr(events, name).add_listener(getattr(around, name))


def _add_arguments(parser: Any, **_: object) -> None:
    parser.add_argument(
        "--model",
        env_var="TORCHLANE_LOAD_MODEL",
        help="the model to load (default: the server's default model)",
    )
    shapes.add_arguments(parser)
    gates.add_arguments(parser)


class _StagedShape(LoadTestShape):
    """Goes through stages and ends the run after the last."""

    abstract = True  # else Locust would always use it from the locustfile

    def __init__(self, stages: shapes.Stages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stages = stages

    def tick(self) -> tuple[int, float] | None:
        users = shapes.users_at(self._stages, self.get_run_time())  # type: ignore[no-untyped-call]
        return None if users is None else (users, float(users))  # start all at once


class _Around:
    """Listens to one run; workers only prepare and load, the master does the rest."""

    def __init__(self) -> None:
        self._master: Any = None  # the runner, in the master's process
        self._message: Mapping[str, Any] | None = None  # sent or received
        self._workers: frozenset[str] = frozenset()  # ids of the workers

    def init(self, environment: Any, **_: object) -> None:
        """Choose the shape, and leave out users that do not suit the model.

        Raises:
            SystemExit: if there is nothing to load.
        """
        if isinstance(environment.runner, WorkerRunner):
            environment.runner.register_message(PREPARED_MESSAGE, self._receive)
            return
        if isinstance(environment.runner, MasterRunner):
            self._master = environment.runner
            environment.runner.register_message(FAILED_MESSAGE, self._worker_fails)
        stages = shapes.stages_of(environment.parsed_options)
        if stages:
            environment.shape_class = _StagedShape(stages)
            environment.shape_class.runner = environment.runner
        if environment.host:  # otherwise entered later on the web page
            try:
                _keep_able(environment, _prepare(environment))
            except LoadTestError as error:
                log.error("%s", error)
                raise SystemExit(1) from error

    def test_start(self, environment: Any, **_: object) -> None:
        """Query the idle server for correct answers."""
        runner, preparation = environment.runner, None
        try:
            if isinstance(runner, WorkerRunner):
                preparation = self._take_message()
            else:
                preparation = _prepare(environment)
                if runner is self._master:
                    self._hand_out(preparation)
                else:
                    _keep_able(environment, preparation)
        except LoadTestError as error:
            if isinstance(runner, WorkerRunner):
                runner.send_message(FAILED_MESSAGE, {"why": str(error)})
            else:
                _fail(environment, str(error))
        if preparation is not None:
            environment.host = preparation.target.url  # users append paths to it
        for user_class in environment.user_classes:
            user_class.preparation = preparation

    def worker_connect(self, client_id: str, **_: object) -> None:
        """Let a worker that connects during a run load too."""
        if self._message is not None:
            self._master.send_message(PREPARED_MESSAGE, self._message, client_id)

    def test_stopping(self, environment: Any, **_: object) -> None:
        """Fail a run that lost a worker, because its load was not the requested one."""
        if environment.runner is not self._master:
            return
        workers, self._workers, self._message = self._workers, frozenset(), None
        missing = sorted(workers - _workers_of(self._master))
        if missing:
            log.error(
                "%d of %d workers dropped out: %s", len(missing), len(workers), ", ".join(missing)
            )
            environment.process_exit_code = 1

    def quitting(self, environment: Any, **_: object) -> None:
        if isinstance(environment.runner, WorkerRunner):
            return
        sentences = gates.broken_gates(environment.runner, environment.parsed_options)
        for sentence in sentences:
            log.error("gate: %s", sentence)
        if sentences or environment.process_exit_code:
            environment.process_exit_code = 1
        else:
            log.info("all gates hold")
            environment.process_exit_code = 0

    def _receive(self, msg: Any, **_: object) -> None:
        self._message = msg.data

    def _take_message(self) -> Preparation:
        """Return the master's message for this run."""
        message, self._message = self._message, None
        if message is None:
            raise TargetError("the master sent nothing to this worker; use one release on both")
        return from_message(message)

    def _hand_out(self, preparation: Preparation) -> None:
        """Send to the workers; messages are ordered, so they get this one before the start."""
        self._workers = _workers_of(self._master)
        self._message = preparation.message
        self._master.send_message(PREPARED_MESSAGE, self._message)

    def _worker_fails(self, environment: Any, msg: Any, **_: object) -> None:
        if self._message is not None:  # else nothing was sent, because the master has failed
            _fail(environment, f"worker {msg.node_id} cannot load: {msg.data['why']}")


def _fail(environment: Any, why: str) -> None:
    """End the run with exit code 1."""
    log.error("%s", why)
    environment.process_exit_code = 1
    gevent.spawn(environment.runner.quit)


def _workers_of(master: MasterRunner) -> frozenset[str]:
    clients = master.clients
    return frozenset(each.id for each in clients.ready + clients.spawning + clients.running)


def _prepare(environment: Any) -> Preparation:
    if not environment.host:
        raise TargetError("no server was given; add --host http://127.0.0.1:8000")
    return prepare(environment.host, environment.parsed_options.model)


def _keep_able(environment: Any, preparation: Preparation) -> None:
    """Leave out the user classes whose workload does not suit the model.

    Raises:
        TargetError: if none is left.
    """
    able = []
    for user_class in environment.user_classes:
        reason = obstacle(preparation, user_class.workload_name)
        if reason is None:
            able.append(user_class)
        else:
            log.warning("%s is left out: %s", user_class.__name__, reason)
    if not able:
        raise TargetError(f"none of these users can load {preparation.target.model!r}")
    environment.user_classes = able
