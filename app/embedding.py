"""The server as part of another program: `torchlane.create_app`."""

from __future__ import annotations

import logging
import os
from typing import Any

import structlog
from fastapi import FastAPI

from app import main
from app.extras import check_extras
from app.logs import configure_logs, join_logs
from app.settings import Settings, SettingsError, load_settings
from models.choices import did_you_mean


def create_app(**settings: Any) -> FastAPI:
    """Build the server as an application, to which routes and middleware can be added.

    Models are loaded in its lifespan: an application that mounts this one has to run it, see
    docs/embedding.md. Requests take more processor time than under `torchlane serve`, which reads
    predictions without ASGI. Logs go to the handlers of `logging` if the program has set any, else
    to stderr as those of `torchlane serve`. A program's own configuration of structlog stays.

    Args:
        settings: as in docs/settings.md, in small letters without the prefix: `model_dir="models"`.
            They override the variables.

    Returns:
        an ASGI application that serves in this process alone, whatever `workers` says.

    Raises:
        MissingExtra: if a setting needs a package that is not installed.
        SettingsError: for a wrong setting, or one that only `torchlane serve` has.
        ValueError: if the settings name missing devices or malformed keys.
    """
    unknown = next((name for name in settings if name not in Settings.model_fields), None)
    if unknown is not None:
        hint = did_you_mean(unknown, Settings.model_fields, "docs/settings.md lists all")
        raise SettingsError(f"{unknown} is not a setting; {hint}")
    read = load_settings(os.environ, **settings)
    if read.grpc_port is not None:
        raise SettingsError("TORCHLANE_GRPC_PORT is for `torchlane serve`, which has the port")
    check_extras(read)
    if not structlog.is_configured():
        if logging.getLogger().handlers:
            join_logs()
        else:
            configure_logs(read.log_level, read.log_format)
    return main.create_app(read)
