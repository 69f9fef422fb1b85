"""Build -> train -> build each variant -> verify it -> time it -> plan -> report -> publish."""

from __future__ import annotations

import datetime as dt
import itertools
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import nn

from export import checkpoints
from export.adoption import outputs
from export.artifact import (
    Sign,
    choose_version,
    digest_of,
    publish,
    staging_folder,
    write_file,
)
from export.errors import ExportError, UsageError
from export.proving import forwards
from export.proving.prove import Proof, ProofOptions, Stage, prove_variants
from export.reading import weights
from export.reports import report_html
from export.timing import profiling, tune
from export.timing.contest import runner
from export.variants.base import Subject
from export.variants.registry import MAKERS, select_variants
from models.choices import Precision
from models.definitions.definition import Definition, Progress
from models.golden import golden_batches
from models.handlers import HandlerManifest
from models.integrity import IntegrityError, NotAModel, Untrusted, Verifier, read_any_artifact
from models.manifest import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    GoldenExample,
    Manifest,
    OmittedVariant,
    TrainingRun,
)
from models.system.heap import collect
from models.tensors import EncodedArray, stack

REPORT_FILE = "report.html"
PROFILED_BATCH = 8


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What to export and where: the parsed command line.

    Attributes:
        out: the repository to write to.
        version: the version number to write; None: the next one.
        checkpoint: a file with weights to load instead of training; see `export.reading.weights`.
        checkpoint_key: where in it the weights are, if it has several.
        proof: which variants to build, and their requirements.
        profile: whether to write profiles of every form.
    """

    model: str
    definition: Definition
    out: Path
    version: int | None = None
    checkpoint: Path | None = None
    checkpoint_key: str | None = None
    proof: ProofOptions = field(default_factory=ProofOptions)
    tuning: tune.TuneOptions = field(default_factory=tune.TuneOptions)
    profile: bool = False


@dataclass(frozen=True, slots=True)
class ExportedArtifact:
    """A finished artifact."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ProvedVariants:
    """The variants of a model, built and verified.

    Attributes:
        manifest: without a plan.
        max_batch: the largest batch that was verified.
        eager: the model if it is to be profiled, else None.
    """

    manifest: Manifest
    max_batch: int
    eager: nn.Module | None


def export(job: ExportJob, stage: Stage) -> ExportedArtifact:
    """Export a model as the job describes.

    Args:
        job: what to do.
        stage: called with the name of each long step; returns its progress callback.

    Raises:
        UsageError: if the job is impossible.
        ParityError: if a file and the eager model give different answers; leaves nothing behind.
        ExportError: if the export fails for another reason; leaves nothing behind.
    """
    version = check_job(job)
    with staging_folder(job.out, job.model) as staging:
        variants = prove(job, version, staging, stage)
        collect()  # the model, unless it is profiled: timing loads all of its forms
        return time_and_publish(variants, job.tuning, staging, stage)


def check_job(job: ExportJob) -> int:
    """Return the version that a job will write, after the checks that take no time.

    Raises:
        UsageError: if the job is impossible.
        ExportError: if its definition has no golden examples.
    """
    names, precision = select_variants(job.proof.variants, job.definition), job.tuning.precision
    if precision is not None and all(MAKERS[name].precision != precision for name in names):
        raise UsageError(f"--plan-precision {precision}: none of {', '.join(names)} computes in it")
    if not job.definition.golden_inputs():
        raise ExportError(
            f"the definition of {job.model!r} has no golden examples; a server replays them before "
            "it is ready: let `golden_inputs` return at least one item"
        )
    return choose_version(job.out / job.model, job.version)


def prove(job: ExportJob, version: int, staging: Path, stage: Stage) -> ProvedVariants:
    """Build and verify the variants: the first half of `export`, which needs the model."""
    module, run = _build(job, stage)
    collect()  # what reading it took
    subject = Subject(job.model, job.definition, module)
    for name, data in job.definition.files().items() if job.definition.files else ():
        write_file(staging / name, data)
    proof = prove_variants(subject, job.proof, staging, stage, job.tuning.threads)
    _check_precision(job.tuning.precision, proof)
    manifest = with_changes(_manifest(job, version, subject, proof, staging), training=run)
    return ProvedVariants(manifest, proof.max_batch, module if job.profile else None)


def time_and_publish(
    variants: ProvedVariants, tuning: tune.TuneOptions, staging: Path, stage: Stage
) -> ExportedArtifact:
    """Time the variants and publish the artifact: the second half of `export`."""
    manifest = variants.manifest
    options = replace(tuning, max_batch=tuning.max_batch or variants.max_batch)
    plan = tune.measure(staging, manifest, options, stage("timing"))
    if variants.eager is not None:
        _profile(variants.eager, manifest, staging, stage("profiling"))
    return finish(staging, with_changes(manifest, plan=plan))


def open_artifact(folder: Path, verifier: Verifier | None = None) -> Manifest:
    """Return the manifest of an artifact after checking that every file is intact.

    Args:
        folder: the artifact.
        verifier: checks its signature; None: unchecked.

    Raises:
        UsageError: if it is not intact or not signed by a trusted key; the message names the file.
    """
    manifest = open_any_artifact(folder, verifier)
    if isinstance(manifest, HandlerManifest):
        raise UsageError(f"{folder}: {NotAModel(manifest)}")
    return manifest


def open_any_artifact(folder: Path, verifier: Verifier | None = None) -> Manifest | HandlerManifest:
    """The same for the artifact of a model or of a handler.

    Raises:
        UsageError: see `open_artifact`.
    """
    try:
        return read_any_artifact(folder, verifier=verifier).manifest
    except Untrusted as error:
        raise UsageError(f"{folder}: {error}") from error
    except IntegrityError as error:
        files = (*folder.glob(f"*/{MANIFEST_FILE}"), *folder.glob(f"*/*/{MANIFEST_FILE}"))
        below = [each.parent for each in files if each.parent.name.isdecimal()]
        newest = max(below, key=lambda each: int(each.name), default=None)
        hint = f"; name the folder of a version, such as {newest}" if newest else ""
        raise UsageError(f"{folder} is not an intact artifact: {error}{hint}") from error


def finish(staging: Path, manifest: Manifest, sign: Sign | None = None) -> ExportedArtifact:
    """Write report and digests, then publish the folder.

    Files that already have a digest keep it: they were verified with it.

    Args:
        staging: the folder with the files.
        manifest: of the artifact, without the digests of the report and other new files.
        sign: returns the content of the signature file; None: not signed.

    Raises:
        ExportError: if a file cannot be written.
    """
    try:
        (staging / REPORT_FILE).write_text(report_html.render(manifest), encoding="utf-8")
        digests = {name: file for name, file in manifest.files.items() if name != REPORT_FILE}
        files = {
            path.name: digests.get(path.name) or digest_of(path)
            for path in sorted(staging.iterdir())
        }
    except OSError as error:
        raise ExportError(f"cannot write {REPORT_FILE}: {error.strerror}") from error
    manifest = with_changes(manifest, files=files)
    return ExportedArtifact(publish(staging, manifest, sign), manifest)


def with_changes(manifest: Manifest, **changes: object) -> Manifest:
    """Return a copy of a manifest with some fields changed, validated as a whole."""
    if "version" in changes:
        changes["created_at"] = dt.datetime.now(dt.UTC)
    fields = {name: getattr(manifest, name) for name in Manifest.model_fields}
    return Manifest.model_validate(fields | changes)


def _check_precision(precision: Precision | None, proof: Proof) -> None:
    if precision is None or any(v.precision == precision for v in proof.variants.values()):
        return
    reasons = (
        f"{name}: {why}"
        for name, why in proof.left_out.items()
        if name in MAKERS and MAKERS[name].precision == precision
    )
    raise ExportError(f"--plan-precision {precision}: no variant is left: {'; '.join(reasons)}")


def _manifest(
    job: ExportJob, version: int, subject: Subject, proof: Proof, staging: Path
) -> Manifest:
    """Return the manifest with everything known before timing."""
    definition = job.definition
    try:
        return Manifest(
            schema_version=SCHEMA_VERSION,
            model=job.model,
            version=version,
            description=definition.description,
            inputs=definition.inputs,
            outputs=definition.outputs,
            codec=definition.codec,
            golden=_golden(subject.eager, definition),
            example=definition.example(),
            real_inputs=definition.real_inputs,
            variants=proof.variants,
            left_out=tuple(
                OmittedVariant(variant=name, reason=why) for name, why in proof.left_out.items()
            ),
            files={file.name: digest_of(file) for file in sorted(staging.iterdir())},
            accuracy=proof.accuracy,
            created_at=dt.datetime.now(dt.UTC),
            git_commit=git_commit(),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise ExportError(
            f"the definition of {job.model!r} contradicts itself: {where}: {first['msg']}"
        ) from error


def _profile(eager: nn.Module, manifest: Manifest, staging: Path, progress: Progress) -> None:
    """Profile eager and every form, on the CPU, with a batch of eight."""
    batch = golden_batches(manifest, PROFILED_BATCH)[0]
    device = torch.device("cpu")
    runs = {"eager": runner(eager, batch, device)}
    forms = tune.load_forms(staging, manifest, device, lambda why: progress(0, 1, why))
    for form, call in forms.items():
        name = f"{form.variant}-optimized" if form.optimized else form.variant
        runs[name] = runner(call, batch, device)
    progress(0, 1, f"{len(runs)} forms")
    profiling.profile(runs, staging)
    progress(1, 1, "")


def _build(job: ExportJob, stage: Stage) -> tuple[nn.Module, TrainingRun | None]:
    module, run = job.definition.build(), None
    if job.checkpoint is not None:
        content = weights.read(job.checkpoint)
        run = checkpoints.run_of(content, job.checkpoint, job.model)
        summary = weights.load(content, job.checkpoint, module, job.checkpoint_key)
        stage("weights")(1, 1, summary)
    elif job.definition.train is not None:
        job.definition.train(module, stage("training"))
    _check_weights(job.model, module)
    return outputs.in_order(module.eval(), job.definition), run


def _check_weights(model: str, module: nn.Module) -> None:
    """Refuse weights of NaN, which some inputs would not show, such as those of a rare word."""
    for name, each in itertools.chain(module.named_parameters(), module.named_buffers()):
        if not each.is_floating_point() or each.element_size() == 1:  # isnan knows no float8
            continue
        bad = int(each.isnan().sum())
        if bad:
            raise ExportError(
                f"the weights of {model!r} are damaged: {bad:,} of {each.numel():,} numbers of "
                f"{name} are NaN, as after a training that diverged"
            )


def _golden(eager: nn.Module, definition: Definition) -> tuple[GoldenExample, ...]:
    examples = []
    for item in definition.golden_inputs():
        answer = forwards.run(eager, definition, stack([item]))
        examples.append(
            GoldenExample(
                inputs={name: EncodedArray.of(array) for name, array in item.items()},
                outputs={name: EncodedArray.of(array[0]) for name, array in answer.items()},
            )
        )
    return tuple(examples)


def git_commit() -> str | None:
    """Return the commit of the exporting code; None outside a git checkout."""
    try:
        result = subprocess.run(  # nosec B603 B607 # no input from outside, git from PATH
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
