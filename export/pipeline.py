"""Build -> script or trace -> freeze -> save -> verify the saved file -> manifest -> publish."""

from __future__ import annotations

import datetime as dt
import pickle
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import nn

from export import verify
from export.artifact import choose_version, digest_of, publish, staging_folder
from export.errors import ExportError, UsageError
from models.definitions.definition import Definition, Progress
from models.manifest import GoldenExample, Manifest, Parity, Variant
from models.tensors import EncodedArray

Method = Literal["script", "trace"]


@dataclass(frozen=True, slots=True)
class Job:
    """What to export and where to: the command line, checked."""

    model: str
    definition: Definition
    out: Path
    method: Method = "script"
    version: int | None = None
    weights: Path | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A finished artifact."""

    folder: Path
    manifest: Manifest


Stage = Callable[[str], Progress]


def export(job: Job, stage: Stage) -> Made:
    """Carry out a job.

    Args:
        job: what to do.
        stage: called with the name of each long step; gives the place to report its progress to.

    Raises:
        UsageError: if the job cannot be done as asked for.
        ParityError: if the saved file does not answer as the eager model does; nothing is left.
    """
    definition = job.definition
    version = choose_version(job.out / job.model, job.version)
    with staging_folder(job.out, job.model) as staging:
        eager = definition.build()
        _learn(eager, job, stage)
        compiled = _compile(eager, job)
        file = staging / f"{job.method}.pt"
        try:
            compiled.save(str(file))
        except (OSError, RuntimeError) as error:  # torch tells of a full disk as a RuntimeError
            raise ExportError(f"cannot write {file.name}: {str(error).splitlines()[0]}") from error
        load: Callable[[str], Any] = torch.jit.load  # untyped in torch
        saved = load(str(file))  # what is proved is the file, not the object in memory
        parity = verify.check_parity(eager, saved, definition, stage("verifying"))
        try:
            manifest = _manifest(job, version, file, (eager, saved), parity)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "manifest"
            raise ExportError(
                f"the definition of {job.model!r} contradicts itself: {where}: {first['msg']}"
            ) from error
        return Made(publish(staging, manifest), manifest)


def _manifest(
    job: Job, version: int, file: Path, models: tuple[nn.Module, Any], parity: Parity
) -> Manifest:
    """Everything that was found out; `models` are the eager one and the saved one."""
    definition, (eager, saved) = job.definition, models
    held_out = definition.held_out() if definition.held_out else None
    variant = Variant(
        file=file.name,
        format="torchscript",
        precision="float32",
        made_by=f"torch.jit.{job.method} + torch.jit.freeze",
        torch_version=torch.__version__,
        device_kinds=("cpu", "cuda"),
        tolerance=verify.FLOAT32,
        parity=parity,
        accuracy=verify.accuracy(saved, definition, held_out) if held_out else None,
    )
    return Manifest(
        model=job.model,
        version=version,
        description=definition.description,
        inputs=definition.inputs,
        outputs=definition.outputs,
        codec=definition.codec,
        golden=_golden(eager, definition),
        example=definition.example(),
        variants={job.method: variant},
        files={file.name: digest_of(file)},
        accuracy=verify.accuracy(eager, definition, held_out) if held_out else None,
        created_at=dt.datetime.now(dt.UTC),
        git_commit=_git_commit(),
    )


def _learn(module: nn.Module, job: Job, stage: Stage) -> None:
    if job.weights is not None:
        _load_weights(module, job.weights)
    elif job.definition.train is not None:
        job.definition.train(module, stage("training"))
    module.eval()


def _load_weights(module: nn.Module, file: Path) -> None:
    try:
        module.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except OSError as error:
        raise UsageError(f"--weights {file}: {error.strerror}") from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise UsageError(
            f"--weights {file}: not a state_dict as torch.save(module.state_dict(), FILE) writes it"
        ) from error
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError) as error:
        raise UsageError(f"--weights {file}: {' '.join(str(error).split())}") from error


def _compile(eager: nn.Module, job: Job) -> torch.jit.ScriptModule:
    try:
        if job.method == "script":
            compiled = torch.jit.script(eager)
        else:
            golden = verify.one_batch(job.definition.golden_inputs()[:1])
            example = tuple(torch.from_numpy(golden[spec.name]) for spec in job.definition.inputs)
            trace: Callable[..., Any] = torch.jit.trace  # untyped in torch
            compiled = trace(eager, example)
        frozen: torch.jit.ScriptModule = torch.jit.freeze(compiled)
        return frozen
    except (RuntimeError, TypeError, ValueError) as error:
        hint = "; try --method trace" if job.method == "script" else ""
        raise ExportError(f"torch.jit.{job.method} refused {job.model!r}{hint}: {error}") from error


def _golden(eager: nn.Module, definition: Definition) -> tuple[GoldenExample, ...]:
    examples = []
    for item in definition.golden_inputs():
        answer = verify.run(eager, definition, verify.one_batch([item]))
        examples.append(
            GoldenExample(
                inputs={name: EncodedArray.of(array) for name, array in item.items()},
                outputs={name: EncodedArray.of(array[0]) for name, array in answer.items()},
            )
        )
    return tuple(examples)


def _git_commit() -> str | None:
    """The commit of the code that made the artifact; None outside a git checkout."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
