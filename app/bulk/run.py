"""Assembles a run from model, source and folder, and reports its result."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from app.bulk import state
from app.bulk.blocks import RAW_BYTES, BlockBounds
from app.bulk.driver import BulkJob, Driver
from app.bulk.driving import drive, judge
from app.bulk.errors import UsageError, tell
from app.bulk.handlers.bodies import BodyChooser, BodyRecipe
from app.bulk.handlers.client import PATIENCE_S
from app.bulk.handlers.needed import versions_for
from app.bulk.handlers.server import PrivateServer
from app.bulk.handlers.stages import FIELDS, HandlerStages
from app.bulk.inputs import CSV, STREAM_FORMAT, Inputs, find_inputs
from app.bulk.model import BulkModel, Choices, open_artifact, steps_of
from app.bulk.parts import Model, Parts, of_model, plan_of, stream_of
from app.bulk.sources.choose import open_source
from app.bulk.tables import schema_of
from app.extras import check_extras
from app.model_source import source_of, trusted_keys
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, HandlerArtifact, Repository
from app.serving.version_policy import VersionPolicy
from app.settings import Settings
from app.types import ModelId
from models.plan import Step
from models.system.command_lines import flag_of
from models.system.distributions import installed_version

PACKAGES = ("torchlane", "torch", "numpy", "pyarrow", "pillow", "soundfile", "soxr", "tokenizers")
# Of runs by handlers: options that they refuse, and settings that their server gets.
ONLY_MODELS = ("top_k", "columns", "batch", "workers", "ray")
OF_SERVER = (
    *("model_dir", "devices", "replicas_per_device", "cpu_threads", "variant", "plan_precision"),
    *("trusted_keys", "handlers", "models_file", "max_batch_size", "max_body_bytes", "hang_s"),
    "max_answer_bytes",
)
HANDLER_ROWS, MAX_PLACES = 256, 64


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
    repository = _repository(options, settings)
    policy = VersionPolicy.parse(settings.versions)
    artifact = open_artifact(repository, policy, options.model, options.version)
    if isinstance(artifact, HandlerArtifact):
        parts = _of_handler(options, settings, inputs, artifact, repository)
    else:
        model = _model(options, settings, earlier, artifact, repository)
        parts = of_model(options, inputs, model)
    packages = PACKAGES if options.ray is None else (*PACKAGES, "ray")
    versions = {name: each for name in packages if (each := installed_version(name)) is not None}
    shards = earlier.shards if earlier else []
    folder = state.RunState(options.out, parts.plan, shards, versions)
    if earlier is not None:
        state.check_unchanged(earlier, parts.plan, options.out)
        if earlier.is_finished:
            code, lines = judge(folder, options.max_bad)
            tell(f"{options.out} is already finished", *lines)
            return code, True
    driver = Driver(parts.job, folder, parts.stages, parts.schema)
    return drive(driver, parts.job, folder, parts.runner, options.max_bad)


def _of_handler(
    options: argparse.Namespace,
    settings: Settings,
    inputs: Inputs,
    artifact: HandlerArtifact,
    repository: Repository,
) -> Parts:
    """The parts of a run by a handler.

    Raises:
        UsageError: if handlers are off, or an option is of no use for one.
        BulkError: if a model that it calls is missing.
    """
    if settings.handlers == "off":
        raise UsageError(
            f"{artifact.id} is a handler, whose code runs only with TORCHLANE_HANDLERS=on"
        )
    for name in ONLY_MODELS:
        if getattr(options, name) is not None:
            raise UsageError(f"{flag_of(name)} is for models; {artifact.id} is a handler")
    if not isinstance(settings.model_dir, Path):
        raise UsageError(f"a handler and its models must be in a folder, not {settings.model_dir}")
    variables = {
        name.upper(): str(value.absolute() if isinstance(value, Path) else value)
        for name in OF_SERVER
        if (value := getattr(settings, name)) is not None
    }
    limits = artifact.manifest.limits
    timeout_ms = max(settings.request_timeout_ms, limits.seconds * 1000)
    variables |= {
        "VERSIONS": versions_for(artifact, repository, settings.versions),
        "REQUEST_TIMEOUT_MS": str(timeout_ms),
    }
    chooser = BodyChooser(options.input_column, options.id_column, options.keep or ())
    source, choice = open_source(inputs, chooser, stream_of(inputs))
    rows = min(HANDLER_ROWS, max(1, RAW_BYTES // max(1, source.row_bytes)))
    bounds = BlockBounds(rows, options.rows_per_shard)
    recipe = BodyRecipe(choice, source.integer_ids, inputs.format == CSV)
    job = BulkJob(
        source, recipe.decode, bounds, options.limit, options.format, 0, options.max_errors
    )
    schema = schema_of(FIELDS, integer_ids=source.integer_ids, extra_columns=source.extra_columns)
    server = PrivateServer(artifact.id.name, variables, settings.log_level)
    path = f"/models/{artifact.id.name}/versions/{artifact.id.version}/predict"
    places = min(MAX_PLACES, limits.processes * limits.concurrency * limits.max_batch_size)
    stages = HandlerStages(server, path, places, timeout_ms / 1000 + PATIENCE_S, schema)
    plan = {
        **plan_of(options, artifact, inputs, "handler"),
        "block_rows": rows,
        "versions": variables["VERSIONS"],
    }
    return Parts(plan, job, stages, schema, stages)


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
    options: argparse.Namespace,
    settings: Settings,
    earlier: state.EarlierRun | None,
    artifact: Artifact,
    repository: Repository,
) -> Model:
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
        SettingsError: if keys or cache cannot be used.
        UsageError: if a cluster would have to fetch the model.
    """
    verifier = trusted_keys(settings)
    if isinstance(settings.model_dir, Path):
        return Repository(settings.model_dir, verifier)
    if options.ray is not None:
        raise UsageError(
            f"--ray needs the models in a folder that every node has, not in {settings.model_dir}"
        )
    check_extras(settings)
    source = source_of(settings, settings.model_dir, verifier, (options.model,))
    asked = [ModelId(options.model, options.version)] if options.version is not None else []
    asyncio.run(source.fetch(asked))
    return source.repository
