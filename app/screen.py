"""What a person at a terminal sees of a healthy start: a line per model, and last the address.

The screen is a view of the log. It turns a few events into lines and hides the details of a start;
the format `json` and the level `debug` show every event.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

LINE = "line"  # the field of a whole line, printed as it is
LISTED = 5  # models in the line that says that the server is ready
RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"
COLORS = {
    "handler_not_ready": RED,
    "listening": BOLD,
    "model_not_loaded": RED,
    "not_ready": RED,
    "ready": BOLD,
    "repository_empty": RED,
}
# The details of a start, at the level info.
DETAILS = frozenset(
    {
        "cpu_layout_measured",
        "cpu_layout_not_measured",
        "device_not_watched",
        "model_cooled",
        "model_loading",
        "model_warmed",
        "page",
        "plan_measured",
        "plan_not_used",
        "shape_caches_bounded",
        "signatures_required",
        "starting",
        "worker_started",
        "variant_unusable",
        "workers_chosen",
    }
)
# What every worker says: the parent says it once.
COMMON = frozenset(
    {
        "default_model_kept",
        "default_model_missing",
        "folders_ignored",
        "handler_loaded",
        "handler_not_ready",
        "handler_ready",
        "model_folder_unreadable",
        "model_loaded",
        "model_not_loaded",
        "model_on_demand",
        "model_retired",
        "not_ready",
        "precision_not_there",
        "repository_empty",
        "repository_unreadable",
        "source_not_seen",
        "source_version_fetched",
        "weights_without_version",
    }
)
# What a worker says of itself, and the parent of the whole server.
OF_THE_WHOLE = frozenset({"draining", "ready", "stopped"})

Event = structlog.types.EventDict
# Passes an event of a worker on to its parent; false if that is impossible.
PassOn = Callable[[str, Mapping[str, object]], bool]


class Screen:
    """A structlog processor: replaces events by lines, and drops details.

    Args:
        colors: whether the terminal shows colors.
        pass_on: passes events on to the parent; None in a process that prints its own lines.
        age_s: returns the age of this process in seconds.
    """

    def __init__(
        self, *, colors: bool, pass_on: PassOn | None = None, age_s: Callable[[], float]
    ) -> None:
        self._colors = colors
        self._pass_on = pass_on
        self._age_s = age_s
        self._url: str | None = None
        self._grpc: str | None = None
        self._served: dict[str, None] = {}  # in the order in which they were loaded
        self._on_demand: set[str] = set()
        self._ready: Event | None = None  # came before the address was known
        self._announced = False
        self._lines: dict[str, Callable[[Event], str | None]] = {
            "cpu_layout_measured_under_load": _measured_under_load,
            "default_model_missing": lambda event: f"Warning: {event['problem']}",
            "draining": _draining,
            "grpc_listens": self._grpc_listens,
            "handler_loaded": self._handler_loaded,
            "handler_not_ready": _handler_not_ready,
            "handler_ready": lambda event: f"{_spoken(event['handler'])}: ready again",
            "listening": self._listening,
            "measuring_cpu_layout": _measuring,
            "model_loaded": self._model_loaded,
            "model_not_loaded": _model_not_loaded,
            "model_on_demand": self._model_on_demand,
            "model_retired": self._model_retired,
            "not_ready": self._not_ready,
            "ready": self._is_ready,
            "repository_empty": lambda event: str(event["problem"]),
            "source_not_seen": _source_not_seen,
            "source_version_fetched": _fetched,
            "stopped": _stopped,
            "worker_loaded": self._worker_loaded,
        }

    def __call__(self, _: object, method: str, event: Event) -> Event:
        """Return the event, or a line instead of it.

        Raises:
            structlog.DropEvent: if there is nothing to print.
        """
        name = event["event"]
        if method == "info" and name in DETAILS:
            raise structlog.DropEvent
        if event.get("exc_info"):  # nobody expected it: the traceback is printed too
            return event
        if self._pass_on is not None:
            if name in OF_THE_WHOLE or (name in COMMON and self._pass_on(method, event)):
                raise structlog.DropEvent
            return event
        line = self._lines.get(name)
        if line is None:
            return event
        text = line(event)
        if text is None:
            raise structlog.DropEvent
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
        color = COLORS.get(name) if self._colors else None
        return {"event": name, LINE: text if color is None else f"{color}{text}{PLAIN}"}

    def _model_loaded(self, event: Event) -> str:
        model = _spoken(event["model"])
        self._served[model] = None
        forms = " + ".join(str(form).replace(", ", " ") for form in event["forms"])
        precision = str(event["serves"]).partition("plan:")[2]  # a pinned variant says it itself
        what = f"{forms} ({precision})" if precision else forms
        return f"{model}: {what} in {event['seconds']:.1f} s"

    def _handler_loaded(self, event: Event) -> str:
        handler = _spoken(event["handler"])
        self._served[handler] = None
        processes, calls = event["processes"], ", ".join(event["calls"])
        what = f"handler, {processes} process{'' if processes == 1 else 'es'}"
        what += f", calls {calls}" if calls else ""
        return f"{handler}: {what}, in {event['seconds']:.1f} s"

    def _model_on_demand(self, event: Event) -> None:  # a line for each would be hundreds
        self._on_demand.add(_spoken(event["model"]))

    def _model_retired(self, event: Event) -> str:
        model = _spoken(event["model"])
        self._served.pop(model, None)
        self._on_demand.discard(model)
        return f"{model}: no longer served"

    def _not_ready(self, event: Event) -> str | None:
        if "reasons" not in event:  # the parent's: the workers have given their reasons
            return None
        where = f" ({self._url})" if self._url else ""
        return f"Not ready{where}: {'; '.join(event['reasons'])}"

    def _grpc_listens(self, event: Event) -> None:
        self._grpc = f"gRPC on port {event['port']}"

    def _listening(self, event: Event) -> str | None:
        self._url = str(event["url"]).rstrip("/")
        return None if self._ready is None else self._is_ready(self._ready)

    def _is_ready(self, event: Event) -> str | None:
        if self._url is None:
            self._ready = event
            return None
        self._announced = True
        workers = event.get("workers")
        parts = (
            _listed(list(self._served)),
            f"{len(self._on_demand)} on demand" if self._on_demand else None,
            f"{workers} workers" if workers is not None else None,
            self._grpc,
        )
        return f"Ready in {self._age_s():.1f} s: {self._url} ({'; '.join(filter(None, parts))})"

    def _worker_loaded(self, event: Event) -> str | None:
        if not self._announced:  # the address follows
            return None
        return f"Worker {event['worker']} is {'ready' if event['ready'] else 'not ready'}"


def _model_not_loaded(event: Event) -> str:
    problem = str(event["problem"]).removeprefix(f"{event['model']}: ")
    return f"{_spoken(event['model'])}: not loaded: {problem}"


def _measuring(event: Event) -> str:
    return f"Timing threads and replicas with {_spoken(event['model'])}: some seconds"


def _measured_under_load(event: Event) -> str:
    return (
        f"Warning: the machine was busy, so {event['chosen']} (replicas x threads) may not be the "
        f"fastest; {event['instead']}"
    )


def _handler_not_ready(event: Event) -> str:
    return f"{_spoken(event['handler'])}: not ready: {event['problem']}"


def _source_not_seen(event: Event) -> str:
    return f"Warning: {event['url']} was not seen ({event['problem']}); served: {event['serves']}"


def _fetched(event: Event) -> str:
    mb = event["downloaded_bytes"] / 1e6
    return f"{_spoken(event['model'])}: fetched, {mb:,.1f} MB in {event['seconds']:.1f} s"


def _spoken(model: object) -> str:
    """A version as a person writes it: digits/1 as `digits 1`."""
    return str(model).replace("/", " ")


def _listed(models: list[str]) -> str:
    more = len(models) - LISTED
    return ", ".join(models[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _draining(event: Event) -> str:
    return (
        f"Stopping ({event['signal']}): accepted requests are answered, for at most "
        f"{event['budget_s']:g} s; a second signal ends at once"
    )


def _stopped(event: Event) -> str | None:
    return f"Stopped ({event['signal']})" if "signal" in event else None  # else `_draining` said it


def process_age_s() -> float:
    """Seconds since the start of this process; where Linux does not tell, since its first clock."""
    with contextlib.suppress(OSError, AttributeError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5), `starttime`
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    return time.monotonic() - IMPORTED_S


IMPORTED_S = time.monotonic()
