"""Carries out a command whose options are parsed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from export import operators, signing
from export.adoption import adopt
from export.apart import apart, is_large
from export.artifact import any_artifact
from export.comparison import compare
from export.destination import Destination, destination
from export.errors import ExportError
from export.handlers import command as handlers
from export.pipeline import ExportJob, export, open_any_artifact
from export.progress import progress_on, say, stdout
from export.proving.prove import ProofOptions
from export.renewal import tune_again
from export.reports.report import print_report
from export.summary import print_summary
from export.timing.tune import TuneOptions
from export.training import options
from models.definitions.definition import Definition
from models.definitions.loading import BrokenDefinition
from models.definitions.training import Diverged
from models.handlers import HandlerManifest
from models.manifest import SIGNATURE_FILE


def run(
    command: str,
    args: argparse.Namespace,
    catalog: Mapping[str, Definition],
    console: Console | None,
) -> int:
    """Carry out a command.

    Args:
        command: its name.
        args: its options.
        catalog: name -> definition; a definition is loaded only when it is built.
        console: where to write; None: to standard output.

    Returns:
        the exit code.

    Raises:
        ExportError: if it fails.
    """
    console = console or stdout()
    with warnings.catch_warnings():
        # Export creates TorchScript; torch announces its deprecation at every call.
        warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
        try:
            if command == "train":
                return _train(args, catalog, console)
            if command == "export":
                _export(args, catalog, console)
            else:
                COMMANDS[command](args, console)
        except (BrokenDefinition, Diverged) as error:
            raise ExportError(str(error)) from error
    return 0


def _export(args: argparse.Namespace, catalog: Mapping[str, Definition], console: Console) -> None:
    with destination(args.out) as target:
        if args.if_empty and (there := any_artifact(target.folder)):
            console.print(f"{escape(target.shown(there))} exists; nothing to do", highlight=False)
            return
        prepare = functools.partial(_definition_job, args, catalog, target.folder)
        _carry_out(prepare, args.checkpoint, args, target, console)


def _definition_job(
    args: argparse.Namespace, catalog: Mapping[str, Definition], out: Path
) -> ExportJob:
    """Return the job for a model of the catalog; imports its definition."""
    return ExportJob(
        model=args.model,
        definition=catalog[args.model],
        out=out,
        version=args.version,
        checkpoint=args.checkpoint,
        checkpoint_key=args.checkpoint_key,
        proof=_proof(args),
        tuning=_tuning(args),
        profile=args.profile,
    )


def _train(args: argparse.Namespace, catalog: Mapping[str, Definition], console: Console) -> int:
    definition, processes = catalog[args.model], options.processes(args)
    options.check(args, definition, processes)
    from export.training.run import train  # noqa: PLC0415 # only this command needs the extra

    if processes.rank:
        console = Console(file=io.StringIO())  # only one process prints
    with progress_on(console) as stage:
        code, lines = train(args, definition, processes, stage, console)
    for line in lines:
        say(console, line)
    return code


def _adopt(args: argparse.Namespace, console: Console) -> None:
    with destination(args.out) as target:
        prepare = functools.partial(_adopt_job, args, target.folder, console)
        _carry_out(prepare, args.file, args, target, console)


def _adopt_job(args: argparse.Namespace, out: Path, console: Console) -> ExportJob:
    """Return the job for a model from elsewhere; print what was learned about it."""
    with console.status("Running the model on samples (at most a minute)"):  # on a terminal only
        adoption = adopt.adopt(args)
    lines = [f"warning: {warning}" for warning in adoption.warnings]
    lines += [f"hint: {adoption.hint}"] if adoption.hint else []
    lines += [f"learned: {each}" for each in adoption.findings]
    lines += (
        [f"examples: {adoption.definition.real_inputs}"] if adoption.definition.real_inputs else []
    )
    for line in lines:
        say(console, line)
    return ExportJob(
        model=adoption.name,
        definition=adoption.definition,
        out=out,
        version=args.version,
        proof=_proof(args),
        tuning=_tuning(args),
        profile=args.profile,
    )


def _tune(args: argparse.Namespace, console: Console) -> None:
    with progress_on(console) as stage:
        artifact = tune_again(args.folder, _tuning(args), stage)
    print_summary(console, artifact.manifest, str(artifact.folder), artifact.folder.parent.parent)
    if os.path.lexists(args.folder / SIGNATURE_FILE):
        say(
            console,
            f"warning: {args.folder} is signed, the new version is not; sign it with "
            "`torchlane sign`",
        )


def _show(args: argparse.Namespace, console: Console) -> None:
    keys = signing.trusted_keys(args.trusted_keys)
    manifest = open_any_artifact(args.folder, keys)
    signature = signing.describe_signature(args.folder, is_checked=keys is not None)
    if isinstance(manifest, HandlerManifest):
        handlers.show(console, manifest, args.folder, signature)
        return
    print_report(console, manifest, args.folder, signature)


COMMANDS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "handler": handlers.run,
    "adopt": _adopt,
    "tune": _tune,
    "show": _show,
    "profile": operators.run,
    "keygen": signing.keygen,
    "sign": signing.sign,
    "compare": compare.run,
}


def _carry_out(
    prepare: Callable[[], ExportJob],
    file: Path | None,
    args: argparse.Namespace,
    target: Destination,
    console: Console,
) -> None:
    """Export a model: a large one, from its file or folder, in a process of its own."""
    with contextlib.ExitStack() as stack:
        if is_large(file) and not args.profile:  # a profile needs the model, after its forms
            work = stack.enter_context(apart(prepare)).export
        else:
            work = functools.partial(export, prepare())
        artifact = work(stack.enter_context(progress_on(console)))
    where = target.deliver(artifact.folder)
    print_summary(console, artifact.manifest, where, args.out, omits_left_out=True)


def _proof(args: argparse.Namespace) -> ProofOptions:
    return ProofOptions(
        args.variants,
        args.max_accuracy_drop,
        args.max_batch_size,
        args.thorough,
        args.integer_share,
    )


def _tuning(args: argparse.Namespace) -> TuneOptions:
    return TuneOptions(args.max_batch_size, args.threads, args.plan_precision)
