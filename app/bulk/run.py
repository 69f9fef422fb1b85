"""Puts a run together: model, source, folder; and says what came of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from app.bulk import state
from app.bulk.answers import Answers
from app.bulk.blocks import Cut, Source, rows_of_block
from app.bulk.columns import Chooser
from app.bulk.decoding import Recipe
from app.bulk.driver import Driver, Job
from app.bulk.errors import BulkError, TooManyErrors, UsageError
from app.bulk.inputs import Inputs, find_inputs
from app.bulk.model import BulkModel, Choices, open_artifact
from app.bulk.progress import Reporter, summary
from app.bulk.sources.choose import folder_of, open_source
from app.bulk.writing import ERRORS_FILE
from app.errors import InvalidInput, TorchlaneError
from app.registry.model_settings import ModelSettings
from app.registry.repository import Repository
from app.serving.version_policy import VersionPolicy
from app.settings import Settings
from models.integrity import Verifier
from models.plan import Step
from models.resources import usable_cores

PACKAGES = ("torchlane", "torch", "numpy", "pyarrow", "pillow", "tokenizers")
INTERRUPTED = 130
OPTIONS = ("top_k", "format", "rows_per_shard", "limit", "input_column", "id_column")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Score what the options say; returns the exit code.

    Raises:
        BulkError: it cannot be begun, or cannot go on.
    """
    inputs = find_inputs(options.input)
    found = state.find(options.out, resume=options.resume)
    lock = state.lock(options.out)
    model = _model(options, settings, found)
    if options.top_k is not None:
        try:
            model.codec.check_top_k()
        except InvalidInput as error:
            raise UsageError(f"--top-k: {error}") from error
    chooser = Chooser(model.manifest, options.input_column, options.id_column)
    source, wanted = open_source(inputs, chooser, sys.stdin.buffer)
    encoded = _has_pictures(model, source)
    rows = rows_of_block(model.manifest, model.batch, encoded=encoded)
    cut = Cut(rows, options.rows_per_shard)
    plan = _plan(options, model, inputs, cut)
    if found is not None:
        state.check_unchanged(found, plan, options.out)
        if found.is_finished:
            sys.stderr.write(f"{options.out} is finished: nothing is left to do\n")
            return 0
    folder = state.Run(options.out, plan, found.shards if found else [], _versions())
    recipe = Recipe(model.manifest, model.files, wanted, folder_of(inputs), source.integer_ids)
    workers = options.workers
    if workers is None:  # pictures take long, and a process holds no lock of another
        workers = usable_cores() if encoded else 0
    job = Job(source, recipe, cut, options.limit, options.format, workers, options.max_errors)
    answers = Answers(model.manifest, model.codec, options.top_k, integer_ids=source.integer_ids)
    with lock:
        code, ended = _drive(Driver(job, folder, model, answers), job, folder, model)
    if not ended:  # a forward or a read does not return, and would keep the process from ending
        sys.stderr.flush()
        os._exit(code)
    return code


def _drive(driver: Driver, job: Job, folder: state.Run, model: BulkModel) -> tuple[int, bool]:
    """Returns the exit code, and whether all threads have ended."""
    total = job.source.total
    if total is not None and job.stop is not None:
        total = min(total, job.stop)
    if total == 0:
        raise BulkError("the input has no rows")
    code, told = 0, list[str]()
    try:
        driver.start()
        folder.begin(model.steps)
        with Reporter(sys.stderr, total, folder.rows) as reporter:
            driver.work(reporter)
        if not folder.rows:
            raise BulkError("the input has no rows")
        folder.end("finished", [], driver.report())
        told = summary(driver.report(), max(1, job.workers), len(model.devices))
    except KeyboardInterrupt:
        code = INTERRUPTED
        rows = f"{folder.rows:,} rows are done"
        told = [f"torchlane: interrupted; {rows}: give the same command --resume to go on"]
    except TooManyErrors as error:
        code = error.exit_code
        folder.end("too many errors", driver.bad, driver.report())
        told = [f"torchlane: {error}; {folder.folder / ERRORS_FILE} has the reasons"]
    except (BulkError, TorchlaneError) as error:
        code = error.exit_code if isinstance(error, BulkError) else BulkError.exit_code
        told = [f"torchlane: {error}"]
    finally:
        ended = driver.close()
    sys.stderr.write("".join(f"{line}\n" for line in told))
    return code, ended


def _model(options: argparse.Namespace, settings: Settings, found: state.Found | None) -> BulkModel:
    repository = Repository(settings.model_dir, _trusted_keys(settings.trusted_keys))
    policy = VersionPolicy.parse(settings.versions)
    artifact = open_artifact(repository, policy, options.model, options.version)
    batch: int | None = options.batch
    steps: tuple[Step, ...] = ()
    if found is not None:  # as it began: a measurement may come out otherwise now
        batch = batch or found.manifest.get("batch")
        steps = _steps(found.manifest.get("steps", []))
    chosen = ModelSettings(
        max_batch_size=settings.max_batch_size,
        variant=settings.variant,
        precision=settings.plan_precision,
    )
    devices = (settings.devices, settings.replicas_per_device, settings.cpu_threads)
    return BulkModel(artifact, Choices(*devices, chosen, batch, steps))


def _steps(written: list[dict[str, Any]]) -> tuple[Step, ...]:
    """The steps of a manifest; none where there was no choice."""
    if any(each["up_to"] is None for each in written):
        return ()
    return tuple(Step.model_validate(each) for each in written)


def _trusted_keys(path: Path | None) -> Verifier | None:
    if path is None:
        return None
    # Not at the top: see app/main.py.
    from models.signatures import KeyFileError, TrustedKeys  # noqa: PLC0415

    try:
        return TrustedKeys.read(path)
    except KeyFileError as error:
        raise UsageError(f"--trusted-keys {path}: {error}") from error


def _plan(
    options: argparse.Namespace, model: BulkModel, inputs: Inputs, cut: Cut
) -> Mapping[str, Any]:
    """What must stay as it is from the beginning of a run to its end."""
    artifact = model.artifact
    return {
        "model": {
            "name": artifact.id.name,
            "version": artifact.id.version,
            "digest": artifact.digest,
            "serves": model.label,
        },
        "inputs": [asdict(each) for each in inputs.given],
        "options": {name: getattr(options, name) for name in OPTIONS},
        "batch": model.batch,
        "block_rows": cut.rows,
        "device": {"kinds": sorted(model.kinds), "threads": model.threads},
    }


def _has_pictures(model: BulkModel, source: Source) -> bool:
    return model.manifest.codec.kind == "image" and not source.has_numbers


def _versions() -> Mapping[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
