"""Command line of the server: `torchlane serve [--port 9000 ...]`, in one or several processes.

A hosting platform may give settings in its own way, see `hosting.py`.

The first SIGTERM or SIGINT drains, and the exit code is 0; a second one ends the process at once.
With one worker there is only this process. With more, this is the parent, which runs no model: the
workers are forks of it if that is safe; otherwise it starts a new process for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import structlog

from app.api.ports import BACKLOG, bound_socket, listening
from app.command_line import parser
from app.extras import check_extras
from app.handlers.privacy import hide_memory
from app.hosting import hosted
from app.logs import configure_logs, label_logs, shows_colors
from app.outputs import Outputs, take_over
from app.processes import fork, news
from app.processes.ending import exit_with
from app.processes.listener import url_of
from app.processes.serving_process import DEVICE_LOST_EXIT_CODE
from app.processes.worker import Place, Shared, Worker, obey_parent_alone
from app.screen import Screen, process_age_s
from app.settings import PREFIX, Settings, SettingsError, load_settings
from app.telemetry import variables
from models.system.command_lines import USAGE_EXIT_CODE, flag_of
from models.system.extras import MissingExtra
from models.system.quiet import DEPRECATIONS, ignore_warnings
from models.system.streams import open_closed_streams

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from app.serving.lifecycle import Lifecycle

LOG = structlog.get_logger(__name__)
LISTEN_EXIT_CODE = 1
# What the system says of a host that is not this machine.
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# With one of these, prometheus_client would keep values in files; it reads them on import.
METRICS_FOLDERS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")

# Builds the application in the given worker process, or in the only process if it is None.
Create = Callable[[Settings, Worker | None], "FastAPI"]


def main(create: Create | None = None, arguments: Sequence[str] | None = None) -> int:
    """Serve the application that `create` (app.main.create_app) builds; return the exit code."""
    open_closed_streams()
    outputs = take_over()
    for message in DEPRECATIONS:  # before any thread starts, which may replace the filters
        ignore_warnings(message=message)
    platform = hosted(os.environ, sys.argv[1:] if arguments is None else arguments)
    options, flags = parser().read(platform.arguments)
    place: Place | None = options.worker
    # The parent has passed a worker what the platform says, or a flag that overrides it.
    chosen = flags if place is not None else {**platform.settings, **flags}
    if place is not None:
        obey_parent_alone(place.parent)
    try:
        settings = load_settings(os.environ, **chosen)
        check_extras(settings)
        if variables.traces_wanted(os.environ):
            # Not at the top: OpenTelemetry's SDK is in an extra.
            from app.telemetry.provider import configured  # noqa: PLC0415

            configured()
        configure_logs(settings.log_level, settings.log_format, _screen(settings, place))
        _drop_metrics_folder()
        workers = _workers(settings) if place is None else 1
        if place is None and (taken := _taken(settings)):
            return _cannot_listen(settings, taken)
        if workers > 1:
            return _supervise(create, settings, workers, outputs)
        return _serve(create or _create_app, settings, place, outputs)
    except (SettingsError, MissingExtra, ValueError) as error:
        problem = str(error)
        for name in chosen:
            source = f"{flag_of(name)} " if name in flags else f"{platform.sources[name]}="
            problem = problem.replace(f"{PREFIX}{name.upper()}=", source)
        event = {"problem": problem}  # which the parent tells once for all workers
        if place is None or not news.pass_on(place.news, place.index, news.MISTAKE, event):
            sys.stderr.write(f"torchlane: {problem}\n")
        return USAGE_EXIT_CODE


def _screen(settings: Settings, place: Place | None) -> Screen | None:
    """The screen of a person; None if every event is to be printed."""
    if (settings.log_format, settings.log_level) != ("console", "info"):
        return None
    pass_on = None if place is None else partial(news.pass_on, place.news, place.index)
    colors = shows_colors(sys.stderr.isatty(), os.environ)
    return Screen(colors=colors, pass_on=pass_on, age_s=process_age_s)


def _drop_metrics_folder() -> None:
    """Keep all values in memory, whatever the environment says."""
    for name in METRICS_FOLDERS:
        if os.environ.pop(name, None):
            LOG.warning("not_used", variable=name, reason="metrics are kept in memory")


def _workers(settings: Settings) -> int:
    """The number of processes, as set, or chosen for the models and the machine."""
    if settings.workers is not None:
        return settings.workers
    if __name__ != "__main__":  # imported by another program
        return 1
    # Not at the top: `--help` needs none of it, and it takes long.
    from app.model_source import repository_of  # noqa: PLC0415
    from app.processes.worker_count import Served, choose  # noqa: PLC0415
    from app.serving.version_policy import VersionPolicy  # noqa: PLC0415

    layout = (settings.replicas_per_device, settings.cpu_threads)
    chosen = choose(
        Served(
            repository_of(settings).root,
            VersionPolicy.parse(settings.versions),
            settings.variant,
            settings.plan_precision,
            settings.max_batch_size,
        ),
        has_own_layout=settings.devices != "auto" or layout != (None, None),
        has_rate_limits=settings.rate_limit is not None or _keys_have_limits(settings),
    )
    LOG.info("workers_chosen", workers=chosen.workers, reason=chosen.reason)
    return chosen.workers


def _keys_have_limits(settings: Settings) -> bool:
    """Whether an API key has a rate limit of its own."""
    if settings.api_keys is None and settings.api_keys_file is None:
        return False
    # Not at the top: rarely needed, and its imports take 70 ms.
    from app.access.keyring import Keyring  # noqa: PLC0415

    return Keyring(settings.api_keys, settings.api_keys_file).has_limits


def _create_app(settings: Settings, worker: Worker | None) -> FastAPI:
    return _import_server()(settings, worker=worker)


def _import_server() -> Callable[..., FastAPI]:
    """Import the server; not at the top, because a parent of workers may not need torch."""
    gc.disable()  # modules are not garbage, but every collection would scan them
    try:
        from app.main import create_app  # noqa: PLC0415
    finally:
        gc.enable()
    return create_app


def _serve(create: Create, settings: Settings, place: Place | None, outputs: Outputs) -> int:
    """Serve in this process, alone or as one of several."""
    from app.processes.server import Server  # noqa: PLC0415 # see `_workers`

    worker = None
    if place is not None:
        worker = Worker(place)
        label_logs(worker=place.index)
    # Workers leave signals to their parent, and do not measure.
    with _ends_at_once() if place is None else contextlib.nullcontext():
        app = create(settings, worker)
    app.state.metrics.watch_log(lambda: outputs.dropped)
    lifecycle: Lifecycle = app.state.lifecycle
    server = Server(_config(app, settings), lifecycle, settings.drain_s, settings.hang_s, worker)
    server.shows_page = settings.shows_page
    if (grpc := app.state.grpc) is not None:
        server.take_grpc = grpc.take
        try:
            grpc.bind()
        except OSError:  # another process took it since `_taken`
            return _cannot_listen(settings, "grpc_port")
    try:
        with outputs.in_threads():
            server.run()
    except SystemExit:  # raised by uvicorn if the port is in use; it has logged why
        return _cannot_listen(settings)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return _cannot_listen(settings)  # another process took it between bind and listen
    if lifecycle.device_lost:
        return DEVICE_LOST_EXIT_CODE
    return 0 if server.started else 1


def _taken(settings: Settings) -> str | None:
    """The setting of a port that seems to be in use, or of a host that is not this machine.

    It is checked before models are loaded.
    """
    for name in ("port", "grpc_port"):
        port: int | None = getattr(settings, name)
        try:
            bound_socket(settings.host, port).close() if port is not None else None
        except (socket.gaierror, UnicodeError):
            return "host"
        except OSError as error:
            return "host" if error.errno in NOT_HERE else name
    return None


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
    """End the process at the first signal: no request was accepted yet, so none must be drained.

    Python's own exit would wait for forwards in threads, or crash during them.
    """

    def end(number: int, _: FrameType | None) -> None:
        LOG.info("stopped", signal=signal.Signals(number).name)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread may set handlers
        yield
        return
    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(create: Create | None, settings: Settings, workers: int, outputs: Outputs) -> int:
    """Run the workers as forks of this process, or start each like this process."""
    # Not at the top: it imports prometheus_client, before which METRICS_FOLDERS are unset.
    from app.processes.supervisor import Supervisor, WorkersPlan  # noqa: PLC0415

    try:
        bound = _config("", settings).bind_socket()
        bound.listen(BACKLOG)  # else a server that starts at the same time could have the port too
    except (SystemExit, OSError):
        return _cannot_listen(settings)
    try:
        grpc = None if settings.grpc_port is None else listening(settings.host, settings.grpc_port)
    except OSError:
        return _cannot_listen(settings, "grpc_port")
    bound.set_inheritable(False)
    if settings.handlers != "off":
        hide_memory()  # this process has the keys, too
    forks = _can_fork()
    with contextlib.ExitStack() as stack:
        stack.enter_context(bound)
        if grpc is not None:
            stack.enter_context(grpc)
        try:
            shared = Shared.create(workers)
        except OSError as error:
            raise SettingsError(
                f"{workers} workers need memory that they share, or files in TMPDIR: {error}; "
                f"{PREFIX}WORKERS=1 needs neither"
            ) from error
        stack.callback(shared.close)
        plan = WorkersPlan(_command(), _environment(settings), workers, settings.drain_s, shared)
        LOG.info("listening", url=url_of(bound))
        if grpc is not None:
            address, port = grpc.getsockname()[:2]
            LOG.info("grpc_listens", address=address, port=port)
        if settings.shows_page:
            LOG.info("page", url=url_of(bound))
        supervisor = Supervisor(bound, plan, lambda: outputs.dropped, grpc)
        if forks:
            supervisor.fork(partial(_be_worker, create, plan.environment))
        stack.enter_context(outputs.in_threads())  # after the forks, which need a single thread
        return asyncio.run(supervisor.run())


def _can_fork() -> bool:
    """Import the server once for all workers; return whether they can be forks of this process.

    They cannot if there may be a GPU: CUDA does not work in forks of a process that has called it.
    On systems other than Linux `is_safe` is false, and nothing is imported.
    """
    from app.processes.worker_count import may_have_gpu  # noqa: PLC0415 # see `_workers`

    if may_have_gpu() or not fork.is_safe():  # if unsafe already, an import is of no use
        return False
    with _ends_at_once():
        _import_server()  # takes a second
    return fork.is_safe()


def _be_worker(create: Create | None, environment: Mapping[str, str], place: Place) -> int:
    """Run as a worker in a fork, like a process started for this worker."""
    os.environ.update(environment)
    return main(create, ["--worker", str(place)])


def _command() -> list[str]:
    """The command that started this process, without its arguments."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        raise ValueError("several workers need `torchlane serve`, which also starts each worker")
    # Else packages of the working directory come first, which `torchlane serve` does not import.
    flags = [] if os.getcwd() in sys.path or "" in sys.path else ["-P"]
    return [sys.executable, *flags, "-m", spec.name.removesuffix(".__main__")]


def _environment(settings: Settings) -> dict[str, str]:
    """The workers' environment, with the settings as read, even if a .env file changes later."""
    values = {name: value for name, value in settings if value is not None}
    return os.environ | {PREFIX + name.upper(): str(value) for name, value in values.items()}


def _config(app: FastAPI | str, settings: Settings) -> uvicorn.Config:
    import uvicorn  # noqa: PLC0415 # see `_workers`

    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools" if isinstance(app, str) else app.state.connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # the service has its own
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # a float does as well
        server_header=False,
        proxy_headers=False,  # the client's address is not used
    )


def _cannot_listen(settings: Settings, name: str = "port") -> int:
    setting = f"{flag_of(name)} ({PREFIX}{name.upper()})"
    if name == "host":
        hint = f"{setting} must name this machine, such as 127.0.0.1, or 0.0.0.0 for all addresses"
    else:
        hint = f"is port {getattr(settings, name)} in use? {setting} chooses another"
    sys.stderr.write(f"torchlane: cannot listen on {settings.host}; {hint}\n")
    return LISTEN_EXIT_CODE


if __name__ == "__main__":
    exit_with(main())
