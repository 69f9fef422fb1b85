"""The command line: arguments, extras, settings and exit codes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from app.bulk.errors import BulkError, UsageError, tell
from app.errors import TorchlaneError
from models.stores.urls import place
from models.system.command_lines import (
    INTERRUPTED_EXIT_CODE,
    OneLineParser,
    count,
    flag_of,
    positive,
    share,
)
from models.system.extras import MissingExtra, check_extra
from models.system.local_paths import local_path
from models.system.quiet import DEPRECATIONS, ignore_warnings
from models.system.streams import open_closed_streams

PACKAGES = ("pyarrow", "rich")  # of the extra
# Flag -> the setting that it overrides.
SETTINGS = ("model_dir", "devices", "variant", "plan_precision", "trusted_keys", "log_level")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    open_closed_streams()
    for message in DEPRECATIONS:
        ignore_warnings(message=message)
    options = parser().parse_args(arguments)
    try:
        check_extra("score", "bulk", PACKAGES)
        if options.ray is not None:
            check_extra("--ray", "ray", ("ray",))
        return _run(options)
    except (BulkError, MissingExtra, TorchlaneError) as error:
        tell(f"torchlane: {error}")
        return error.exit_code if isinstance(error, BulkError) else UsageError.exit_code
    except KeyboardInterrupt:
        tell("torchlane: interrupted before the run began")
        return INTERRUPTED_EXIT_CODE


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = OneLineParser(
        prog="torchlane score",
        allow_abbrev=False,
        description="Score files with an exported model, without a server: docs/bulk.md.",
    )
    add = top.add_argument
    add("model", help="name of the model")
    add(
        "input",
        nargs="+",
        help="Parquet, CSV, JSONL or .npy files, pictures, folders or globs; - reads JSONL from "
        "standard input",
    )
    add("--out", type=local_path, required=True, help="folder for the results, new or empty")
    add("--resume", action="store_true", help="resume the run in --out")
    add("--version", type=positive, help="version of the model (default: the newest)")
    add("--model-dir", type=place, help="the repository, a folder or a URL (default: artifacts)")
    add("--devices", help="auto, cpu, cpu*2 or cuda:0,cuda:1 (default: auto)")
    add("--variant", help="the only variant to run (default: the artifact's plan)")
    add("--plan-precision", "--precision", help="the precision to compute in")
    add("--trusted-keys", type=local_path, help="accept only artifacts signed by one of these keys")
    add("--batch", type=positive, help="items per forward (default: the plan's best)")
    add("--workers", type=count, help="decoding processes (default: one per core for files)")
    add("--ray", metavar="ADDRESS", help="run on a Ray cluster: local, auto or ray://HOST:PORT")
    add("--input-column", metavar="NAME", help="the column of the input (default: input)")
    add(
        "--columns",
        action="append",
        metavar="NAME=COLUMN,COLUMN",
        help="the columns, each with one number, that are this input; repeat it for other inputs",
    )
    add(
        "--keep",
        type=_names,
        metavar="COLUMN,COLUMN",
        help="copy these columns into the results; '*' for all that are neither inputs nor ids",
    )
    add("--id-column", metavar="NAME", help="the column of the ids (default: id, if there is one)")
    add("--top-k", type=positive, help="also write the K highest scores")
    add("--format", choices=("parquet", "jsonl"), default="parquet", help="format of the results")
    add("--rows-per-shard", type=positive, default=65_536, help="(default: 65536)")
    add("--limit", type=positive, help="score only the first N rows")
    add("--max-errors", type=count, metavar="N", help="stop after more than N bad rows")
    add(
        "--max-bad",
        type=share,
        default=0.5,
        metavar="SHARE",
        help="exit code 1 if a larger share of all rows is bad, 0..1 (default: 0.5)",
    )
    add("--log-level", default="error", help="debug, info, warning or error (default: error)")
    return top


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} must be names, each once, separated by commas")
    return names


def _run(options: argparse.Namespace) -> int:
    """Run with the settings of the environment and the command line's overrides.

    Raises:
        UsageError: if a setting is invalid; the message names the flag or the variable.
    """
    # Not at the top: they import much, torch and packages of the extra too.
    from app.logs import configure_logs  # noqa: PLC0415
    from app.settings import PREFIX, SettingsError, load_settings  # noqa: PLC0415

    overrides = {name: getattr(options, name) for name in SETTINGS}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = load_settings(os.environ, **overrides)
        configure_logs(settings.log_level, settings.log_format)
        from app.bulk.run import run  # noqa: PLC0415

        return run(options, settings)
    except SettingsError as error:
        problem = str(error)
        for name in overrides:
            problem = problem.replace(f"{PREFIX}{name.upper()}=", f"{flag_of(name)} ")
        raise UsageError(problem) from None
