"""Structured logs on stderr, in one format for structlog and the standard library (uvicorn)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import structlog

from app.screen import LINE, Screen

# These loggers warn about each malformed form or header: clients could fill the log.
CALLERS_MISTAKES = ("opentelemetry.attributes", "opentelemetry.trace", "python_multipart")
_LABELS: dict[str, object] = {}  # of this process


def label_logs(**labels: object) -> None:
    """Add these fields to every further line of this process, whichever thread writes it."""
    _LABELS.update(labels)


def _labelled(
    logger: object, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    for name, value in _LABELS.items():
        event.setdefault(name, value)
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
        renderer = [_ConsoleRenderer(colors=colors, exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *([] if screen is None else [screen]),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
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
