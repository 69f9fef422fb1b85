"""Structured logs on stderr, in one format for structlog and the standard library (uvicorn)."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping

import structlog

from app.screen import LINE, Screen

# These loggers write about each form, header or picture: clients could fill the log.
CALLERS_MISTAKES = ("opentelemetry.attributes", "opentelemetry.trace", "PIL", "python_multipart")
# Ours or a library's, and of several lines. All other texts may come from clients.
OWN_TEXTS = ("event", "exception", "stack", LINE)
_LABELS: dict[str, object] = {}  # of this process


def label_logs(**labels: object) -> None:
    """Add these fields to every further line of this process, whichever thread writes it."""
    _LABELS.update(labels)


class Lines:
    """Writes the lines of a logger; the standard library's way to stderr costs twice as much.

    Args:
        name: of the logger.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        """Write a line; nothing fails because the log cannot be written."""
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            sys.stderr.write(f"{line}\n")

    debug = info = warning = error = critical = exception = msg


def _labelled(
    logger: object, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    for name, value in _LABELS.items():
        event.setdefault(name, value)
    return event


def _printable(
    logger: object, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Escape what could end a line, or control a terminal."""
    for name, value in event.items():
        if name not in OWN_TEXTS and isinstance(value, str) and not value.isprintable():
            event[name] = value.encode("unicode_escape").decode("ascii")
    return event


class _ConsoleRenderer(structlog.dev.ConsoleRenderer):
    """Renders events for people; a screen's lines as they are."""

    def __call__(
        self, logger: object, method: str, event: structlog.types.EventDict
    ) -> str:  # the screen's lines have no time and no level
        return str(event[LINE]) if LINE in event else super().__call__(logger, method, event)


def shows_colors(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to print colors: NO_COLOR, then FORCE_COLOR, then the terminal decide."""
    if environ.get("NO_COLOR"):  # https://no-color.org: set, and not empty
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def configure_logs(level: str, form: str, screen: Screen | None = None) -> None:
    """Send all logs to stderr.

    Args:
        level: debug, info, warning or error.
        form: `console` for people, `json` for one object per line.
        screen: replaces some events by lines, and hides uvicorn's.
    """
    shared: list[structlog.types.Processor] = [
        _labelled,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.types.Processor]
    if form == "json":
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain tracebacks: pretty ones print local variables, which may contain a client's data.
        plain = structlog.dev.plain_traceback
        colors = shows_colors(sys.stderr.isatty(), os.environ)
        renderer = [_printable, _ConsoleRenderer(colors=colors, exception_formatter=plain)]
    structlog.configure(
        processors=[*([] if screen is None else [screen]), *shared, *renderer],
        logger_factory=Lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CALLERS_MISTAKES:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if screen is not None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def join_logs() -> None:
    """Send our logs to the handlers of `logging` that the program has set, as texts of one line."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            _printable,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
