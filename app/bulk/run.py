"""Assembles a run from model, source and folder, and reports its result."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from app.bulk import state
from app.bulk.answers import Answers
from app.bulk.blocks import BlockBounds, RowSource, rows_of_block
from app.bulk.columns import Chooser, vectors_of
from app.bulk.decoding import Recipe
from app.bulk.driver import BulkJob, Driver
from app.bulk.errors import BulkError, TooManyErrors, UsageError, tell
from app.bulk.inputs import STREAM_FORMAT, Inputs, find_inputs
from app.bulk.model import BulkModel, Choices, open_artifact, steps_of
from app.bulk.pipeline import LocalStages, Stages
from app.bulk.progress import Reporter, summary
from app.bulk.sources.choose import folder_of, open_source
from app.bulk.writing import ERRORS_FILE
from app.errors import InvalidInput, TorchlaneError
from app.extras import check_extras
from app.model_source import source_of
from app.registry.model_settings import ModelSettings
from app.registry.repository import Repository
from app.serving.version_policy import VersionPolicy
from app.settings import Settings, SettingsError
from app.types import ModelId
from models.distributions import installed_version
from models.integrity import Verifier
from models.plan import Step
from models.resources import usable_cores

if TYPE_CHECKING:
    from app.bulk.on_ray import ClusterModel

Model: TypeAlias = "BulkModel | ClusterModel"

PACKAGES = ("torchlane", "torch", "numpy", "pyarrow", "pillow", "soundfile", "soxr", "tokenizers")
INTERRUPTED = 130
TABLE_OPTIONS = ("columns", "keep")  # manifests of older runs lack them
OPTIONS = ("top_k", "format", "rows_per_shard", "limit", "input_column", "id_column")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Score the inputs of the options; returns the exit code.

    Raises:
        BulkError: if the run cannot begin or continue.
    """
    inputs = _inputs(options)
    with state.lock(options.out):
        code, has_ended = _run_locked(options, settings, inputs)
        if not has_ended:  # a forward or a read that hangs would keep the process alive
            os._exit(code)
    return code


def _run_locked(
    options: argparse.Namespace, settings: Settings, inputs: Inputs
) -> tuple[int, bool]:
    """Returns the exit code, and whether all threads have ended."""
    earlier = state.find(options.out, resume=options.resume)
    model = _model(options, settings, earlier)
    if options.top_k is not None:
        try:
            model.codec.check_top_k()
        except InvalidInput as error:
            raise UsageError(f"--top-k: {error}") from error
    vectors = vectors_of(model.manifest, options.columns or ())
    if vectors and options.input_column is not None:
        raise UsageError("--columns and --input-column: give one of them")
    column_names = options.input_column, options.id_column
    chooser = Chooser(model.manifest, *column_names, vectors, options.keep or ())
    stream = sys.stdin.buffer if inputs.format == STREAM_FORMAT else io.BytesIO()
    source, choice = open_source(inputs, chooser, stream)
    encoded = _has_files(model, source)
    rows = rows_of_block(model.manifest, model.batch, source.row_bytes, encoded=encoded)
    bounds = BlockBounds(rows, options.rows_per_shard)
    plan = _plan(options, model, inputs, bounds)
    packages = PACKAGES if options.ray is None else (*PACKAGES, "ray")
    versions = {name: each for name in packages if (each := installed_version(name)) is not None}
    folder = state.RunState(options.out, plan, earlier.shards if earlier else [], versions)
    if earlier is not None:
        state.check_unchanged(earlier, plan, options.out)
        if earlier.is_finished:
            code, lines = _judge(folder, options.max_bad)
            tell(f"{options.out} is already finished", *lines)
            return code, True
    recipe = Recipe(
        *(model.manifest, model.files, choice, folder_of(inputs), source.integer_ids),
        dict(source.extra_columns),
    )
    workers = _workers(options, model, encoded=encoded)
    job = BulkJob(
        source, recipe, bounds, options.limit, options.format, workers, options.max_errors
    )
    answers = Answers(
        *(model.manifest, model.codec, options.top_k),
        integer_ids=source.integer_ids,
        extra_columns=source.extra_columns,
    )
    driver = Driver(job, folder, _stages(job, model, answers, options.top_k), answers.schema)
    return _drive(driver, job, folder, model, options.max_bad)


def _drive(
    driver: Driver, job: BulkJob, folder: state.RunState, model: Model, max_bad: float
) -> tuple[int, bool]:
    """Returns the exit code, and whether all threads have ended."""
    total = job.source.total
    if total is not None and job.stop is not None:
        total = min(total, job.stop)
    if total == 0:
        raise BulkError("the input has no rows")
    code, lines = 0, list[str]()
    try:
        driver.start()
        folder.begin(model.steps)
        with Reporter(total, folder.rows) as reporter:
            driver.work(reporter)
        if not folder.rows:
            raise BulkError("the input has no rows")
        folder.end("finished", [], driver.report())
        code, verdict = _judge(folder, max_bad)
        lines = summary(driver.report(), job.workers, len(model.devices)) + verdict
    except KeyboardInterrupt:
        code = INTERRUPTED
        rows = f"{folder.rows:,} rows are done"
        lines = [f"torchlane: interrupted; {rows}: to resume, repeat the command with --resume"]
        _end_if_interrupted(lines)
        tell("torchlane: interrupted, stopping")
    except TooManyErrors as error:
        code = error.exit_code
        folder.end("too many errors", driver.bad, driver.report())
        lines = [f"torchlane: {error}; see {folder.folder / ERRORS_FILE} for the reasons"]
    except (BulkError, TorchlaneError) as error:
        code = error.exit_code if isinstance(error, BulkError) else BulkError.exit_code
        lines = [f"torchlane: {error}"]
    finally:
        has_ended = driver.close()
    tell(*lines)
    return code, has_ended


def _judge(folder: state.RunState, max_bad: float) -> tuple[int, list[str]]:
    """The exit code of a finished run, and a line about its bad rows, also of earlier parts."""
    if not folder.errors:
        return 0, []
    see = f"see {folder.folder / ERRORS_FILE} for the reasons"
    if folder.errors == folder.rows:
        return BulkError.exit_code, [f"torchlane: no row has a prediction: {see}"]
    bad = f"{folder.errors:,} of {folder.rows:,} rows are bad"
    if folder.errors > max_bad * folder.rows:
        return BulkError.exit_code, [f"torchlane: {bad}, --max-bad allows {max_bad:.4g}: {see}"]
    return 0, [f"{bad}: {see}"]


def _end_if_interrupted(lines: Sequence[str]) -> None:
    """Let a second Ctrl-C or SIGTERM end the process at once, at any point."""

    def end(*_: object) -> None:
        tell(*lines)
        os._exit(INTERRUPTED)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def _inputs(options: argparse.Namespace) -> Inputs:
    inputs = find_inputs(options.input, options.out)
    if inputs.format == STREAM_FORMAT:
        if sys.stdin is None:
            raise UsageError("- is standard input, which is closed")
        with contextlib.suppress(OSError):  # not a file
            os.set_blocking(sys.stdin.fileno(), True)  # otherwise "no data yet" reads as its end
    if options.ray is None:
        return inputs
    if options.workers is not None:
        raise UsageError(
            "--workers cannot be used with --ray: the cluster's actors and tasks decode"
        )
    # Not at the top: Ray is an extra.
    from app.bulk.on_ray import reachable  # noqa: PLC0415

    return reachable(inputs)


def _model(
    options: argparse.Namespace, settings: Settings, earlier: state.EarlierRun | None
) -> Model:
    repository = _repository(options, settings)
    policy = VersionPolicy.parse(settings.versions)
    artifact = open_artifact(repository, policy, options.model, options.version)
    batch: int | None = options.batch
    steps: tuple[Step, ...] = ()
    if earlier is not None:  # as at the beginning: new measurements may differ
        batch = batch or earlier.manifest.get("batch")
        steps = steps_of(earlier.manifest.get("steps", []))
    model_settings = ModelSettings(
        max_batch_size=settings.max_batch_size,
        variant=settings.variant,
        precision=settings.plan_precision,
    )
    devices = (settings.devices, settings.replicas_per_device, settings.cpu_threads)
    choices = Choices(*devices, model_settings, batch, steps)
    if options.ray is None:
        return BulkModel(artifact, choices)
    from app.bulk.on_ray import ClusterModel, connect  # noqa: PLC0415

    connect(options.ray)
    return ClusterModel(artifact, repository.root, choices)


def _repository(options: argparse.Namespace, settings: Settings) -> Repository:
    """The repository; from a store the model is fetched first, unless it is here already.

    Raises:
        UsageError: if keys or cache cannot be used, or a cluster would have to fetch the model.
    """
    verifier = _trusted_keys(settings.trusted_keys)
    if isinstance(settings.model_dir, Path):
        return Repository(settings.model_dir, verifier)
    if options.ray is not None:
        raise UsageError(
            f"--ray needs the models in a folder that every node has, not in {settings.model_dir}"
        )
    check_extras(settings)
    try:
        source = source_of(settings, settings.model_dir, verifier, (options.model,))
    except SettingsError as error:
        raise UsageError(str(error)) from None
    asked = [ModelId(options.model, options.version)] if options.version is not None else []
    asyncio.run(source.fetch(asked))
    return source.repository


def _stages(job: BulkJob, model: Model, answers: Answers, top_k: int | None) -> Stages:
    if isinstance(model, BulkModel):
        return LocalStages(model, answers)
    from app.bulk.on_ray import ClusterStages  # noqa: PLC0415

    return ClusterStages(model, job.source, job.bounds, job.stop, job.recipe, top_k)


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
    options: argparse.Namespace, model: Model, inputs: Inputs, bounds: BlockBounds
) -> Mapping[str, Any]:
    """What must not change from the beginning of a run to its end."""
    artifact = model.artifact
    return {
        "model": {
            "name": artifact.id.name,
            "version": artifact.id.version,
            "digest": artifact.digest,
            "serves": model.label,
        },
        "inputs": [asdict(each) for each in inputs.arguments],
        "options": {
            name: getattr(options, name)
            for name in (*OPTIONS, *TABLE_OPTIONS)
            if name in OPTIONS or getattr(options, name) is not None
        },
        "batch": model.batch,
        "block_rows": bounds.rows,
        "device": {"kinds": sorted(model.kinds), "threads": model.threads},
    }


def _workers(options: argparse.Namespace, model: Model, *, encoded: bool) -> int:
    """Number of decoding processes: files are slow, and processes do not share a GIL."""
    if options.ray is not None:
        return len(model.devices)  # the cluster decodes where it scores
    if options.workers is not None:
        return int(options.workers)
    return usable_cores() if encoded else 0


def _has_files(model: Model, source: RowSource) -> bool:
    return model.manifest.codec.kind in ("image", "audio") and not source.has_numbers
