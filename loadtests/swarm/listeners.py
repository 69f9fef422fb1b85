"""What happens around a run of Locust: arguments, preparation, shapes, gates and the plot."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import gevent
from locust.runners import MasterRunner, WorkerRunner

from loadtests.swarm import gates, history, history_plot, shapes, staged
from loadtests.swarm.users import Prepared, obstacle, prepare
from loadtests.traffic.target import TargetError

WINDOW_S = 1.0
# Workers tell the master what they counted every three seconds.
MASTER_WINDOW_S = 6.0
log = logging.getLogger(__name__)


def listen(events: Any) -> None:
    """Take part in a run; for Locust's `events`, once per locustfile."""
    around = Around()
    events.init_command_line_parser.add_listener(add_arguments)
    events.init.add_listener(around.init)
    events.test_start.add_listener(around.test_start)
    events.quitting.add_listener(around.quitting)


def add_arguments(parser: Any, **_: object) -> None:
    """All options that Locust does not have."""
    parser.add_argument(
        "--model",
        env_var="TORCHLANE_LOAD_MODEL",
        help="the model to load; unless told, the server's default one",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw latency over rate, from this run, into a file"
    )
    shapes.add_arguments(parser)
    gates.add_arguments(parser)


class Around:
    """Listens to one run; workers prepare and load, and leave all else to their master."""

    def __init__(self) -> None:
        self._recorder = history.Recorder()
        self._recording: Any = None

    def init(self, environment: Any, **_: object) -> None:
        """Choose the shape, and leave out the users that the model has no use for.

        Raises:
            SystemExit: if there is nothing to load.
        """
        if isinstance(environment.runner, WorkerRunner):
            return
        staged.choose(environment)
        if environment.host:  # without, the web page asks for it later
            try:
                _keep_able(environment, _prepared(environment))
            except TargetError as error:
                log.error("%s", error)
                raise SystemExit(1) from error

    def test_start(self, environment: Any, **_: object) -> None:
        """Ask the server, which is idle still, for right answers; begin to record."""
        prepared = None
        try:
            prepared = _prepared(environment)
            if not isinstance(environment.runner, WorkerRunner | MasterRunner):
                _keep_able(environment, prepared)
        except TargetError as error:
            log.error("%s", error)
            environment.process_exit_code = 1
            gevent.spawn(environment.runner.quit)
        for user_class in environment.user_classes:
            user_class.prepared = prepared
        if not isinstance(environment.runner, WorkerRunner):
            self._record(environment.runner)

    def quitting(self, environment: Any, **_: object) -> None:
        """Draw the plot, and decide on the exit code."""
        if isinstance(environment.runner, WorkerRunner):
            return
        if self._recording is not None:
            self._recording.kill()
            self._recorder.take(time.monotonic(), environment.runner)
        options = environment.parsed_options
        if options.plot:
            self._draw(Path(options.plot))
        failed = gates.broken(gates.totals_of(environment.runner), gates.limits_of(options))
        for sentence in failed:
            log.error("gate: %s", sentence)
        if failed or environment.process_exit_code:
            environment.process_exit_code = 1
        else:
            log.info("all gates hold")
            environment.process_exit_code = 0

    def _record(self, runner: Any) -> None:
        if self._recording is not None:
            self._recording.kill()
        window_s = MASTER_WINDOW_S if isinstance(runner, MasterRunner) else WINDOW_S
        self._recorder = history.Recorder()

        def run() -> None:
            while True:
                self._recorder.take(time.monotonic(), runner)
                gevent.sleep(window_s)

        self._recording = gevent.spawn(run)

    def _draw(self, file: Path) -> None:
        windows = history.windows(self._recorder.samples)
        if not windows:
            log.warning("no plot: the run was too short, or answered too little")
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        history_plot.draw(windows, file)
        log.info("plot: %s", file)


def _prepared(environment: Any) -> Prepared:
    if not environment.host:
        raise TargetError("no server is named; say --host http://127.0.0.1:8000")
    return prepare(environment.host, environment.parsed_options.model)


def _keep_able(environment: Any, prepared: Prepared) -> None:
    """Leave out the user classes whose workload the model cannot take.

    Raises:
        TargetError: if none is left.
    """
    kept = []
    for user_class in environment.user_classes:
        reason = obstacle(prepared, user_class.workload_name)
        if reason is None:
            kept.append(user_class)
        else:
            log.warning("%s is left out: %s", user_class.__name__, reason)
    if not kept:
        raise TargetError(f"none of these users can load {prepared.target.model!r}")
    environment.user_classes = kept
