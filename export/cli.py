"""The command line: `python -m export MODEL`, and the other commands."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from rich.console import Console
from rich.markup import escape

from export import operators, signing, values
from export.adoption import adopt
from export.apart import apart, is_large
from export.artifact import any_artifact
from export.comparison import compare
from export.errors import ExportError, UsageError
from export.pipeline import ExportJob, export, open_artifact
from export.progress import progress_on, say, stdout
from export.proving.prove import ProofOptions
from export.proving.verify import BATCH_S
from export.renewal import tune_again
from export.reports.report import print_report
from export.summary import print_summary
from export.timing.tune import TuneOptions
from export.training import options
from export.variants.base import INTEGER_SHARE
from export.variants.registry import MAKERS
from models.definitions.definition import Definition
from models.definitions.loading import BrokenDefinition
from models.definitions.training import Diverged
from models.local_paths import local_path
from models.manifest import SIGNATURE_FILE
from models.plan import MAX_BATCH, Precision

EPILOG = """\
commands other than model names (--help explains each):
  train MODEL   train a model with a declared training, on one or more devices, in a run's folder
  adopt FILE    export a TorchScript or ONNX file, a TorchServe .mar or a Hugging Face folder
  tune FOLDER   time an artifact's variants on this machine; writes the plan as a new version
  show FOLDER   print the report of an artifact
  profile FOLDER  print which operators a forward spends its time in; write a trace
  keygen FILE   create a key pair for signing artifacts
  sign FOLDER   sign an artifact, for servers that accept only signed ones
  compare       time eager, batched, scripted and compiled forms of two small functions

exit codes: 0 done; 1 failed and left nothing behind; 2 wrong usage.

example: python -m export digits --out artifacts
"""

TRAIN = "train"
TRAIN_HELP = "Train a model as its definition declares it; writes RUN/best.ckpt and its curves."

Command = Callable[[Sequence[str], Console], None]


def main(
    arguments: Sequence[str], catalog: Mapping[str, Definition], console: Console | None = None
) -> int:
    """Run the command that the arguments name.

    Args:
        arguments: without the program's name.
        catalog: name -> definition of everything that can be built; a definition is loaded only
            when it is built.
        console: where to write; errors go to stderr.

    Returns:
        the exit code: 0 done, 1 failed, 2 wrong usage.
    """
    console = console or stdout()
    try:
        with warnings.catch_warnings():
            # Export creates TorchScript; torch announces its deprecation at every call.
            warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
            command = COMMANDS.get(arguments[0]) if arguments else None
            if command is not None:
                command(arguments[1:], console)
            elif arguments[:1] == [TRAIN]:
                return _train(arguments[1:], catalog, console)
            else:
                _export(arguments, catalog, console)
    except (ExportError, BrokenDefinition, Diverged) as error:
        Console(stderr=True, soft_wrap=True).print(f"export: {escape(str(error))}", highlight=False)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        outcome = "nothing was written"
        if arguments[:1] == [TRAIN]:
            outcome = "--resume continues from the last checkpoint, if there is one"
        sys.stderr.write(f"export: interrupted; {outcome}\n")
        return 130  # the shell's convention for SIGINT
    return 0


class _CommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help explains every option)")


def _export(arguments: Sequence[str], catalog: Mapping[str, Definition], console: Console) -> None:
    parser = _CommandParser(
        prog="python -m export",
        description="Create a verified, self-describing artifact of a model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help=f"what to export: {', '.join(catalog)}".replace("%", "%%"))
    _add_out(parser)
    _add_variants(parser)
    _add_accuracy(parser)
    parser.add_argument(
        "--checkpoint",
        "--weights",
        type=local_path,
        metavar="FILE",
        help="load weights instead of training: a state_dict, a safetensors file, or a checkpoint "
        "of `python -m export train`, Lightning or another trainer",
    )
    parser.add_argument(
        "--checkpoint-key",
        metavar="NAME",
        help="which weights of the checkpoint, if several fit: state_dict_ema, for example",
    )
    parser.add_argument(
        "--if-empty",
        action="store_true",
        help="do nothing if the repository already has an artifact of any model",
    )
    _add_tuning(parser)
    args = parser.parse_args(arguments)
    if args.model not in catalog:
        raise UsageError(
            f"unknown model {args.model!r}; there are: {', '.join(sorted(catalog))}; "
            f"or a command: {', '.join((TRAIN, *COMMANDS))}"
        )
    if args.checkpoint_key and not args.checkpoint:
        raise UsageError("--checkpoint-key needs --checkpoint FILE")
    if args.if_empty and (there := any_artifact(args.out)):
        console.print(f"{escape(str(there))} exists; nothing to do", highlight=False)
        return
    _carry_out(lambda: _definition_job(args, catalog), args.checkpoint, args, console)


def _definition_job(args: argparse.Namespace, catalog: Mapping[str, Definition]) -> ExportJob:
    """Return the job for a model of the catalog; imports its definition."""
    return ExportJob(
        model=args.model,
        definition=catalog[args.model],
        out=args.out,
        version=args.version,
        checkpoint=args.checkpoint,
        checkpoint_key=args.checkpoint_key,
        proof=ProofOptions(
            args.variants,
            args.max_accuracy_drop,
            args.max_batch_size,
            args.thorough,
            args.integer_share,
        ),
        tuning=_tuning(args),
        profile=args.profile,
    )


def _train(arguments: Sequence[str], catalog: Mapping[str, Definition], console: Console) -> int:
    parser = _CommandParser(prog="python -m export train", description=TRAIN_HELP)
    options.add_arguments(parser)
    args = parser.parse_args(arguments)
    if args.model not in catalog:
        raise UsageError(f"unknown model {args.model!r}; there are: {', '.join(sorted(catalog))}")
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


def _adopt(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(prog="python -m export adopt", description=adopt.__doc__)
    adopt.add_arguments(parser)
    _add_out(parser)
    _add_variants(parser)
    _add_accuracy(parser)
    _add_tuning(parser)
    args = parser.parse_args(arguments)
    _carry_out(lambda: _adopt_job(args, console), args.file, args, console)


def _adopt_job(args: argparse.Namespace, console: Console) -> ExportJob:
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
        out=args.out,
        version=args.version,
        proof=ProofOptions(
            args.variants,
            max_accuracy_drop=args.max_accuracy_drop,
            max_batch=args.max_batch_size,
            thorough=args.thorough,
            integer_share=args.integer_share,
        ),
        tuning=_tuning(args),
        profile=args.profile,
    )


def _tune(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(
        prog="python -m export tune",
        description="Time an artifact's variants on this machine; write the plan as a new version.",
    )
    parser.add_argument("folder", type=local_path, help="an artifact, such as artifacts/digits/1")
    _add_tuning(parser, again=True)
    args = parser.parse_args(arguments)
    with progress_on(console) as stage:
        artifact = tune_again(args.folder, _tuning(args), stage)
    print_summary(console, artifact.manifest, artifact.folder)
    if os.path.lexists(args.folder / SIGNATURE_FILE):
        say(
            console,
            f"warning: {args.folder} is signed, the new version is not; sign it with "
            "`python -m export sign`",
        )


def _show(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(
        prog="python -m export show", description="Print the report of an artifact."
    )
    parser.add_argument("folder", type=local_path, help="an artifact, such as artifacts/digits/1")
    parser.add_argument(
        "--trusted-keys",
        type=local_path,
        metavar="PATH",
        help="public keys, a PEM file or a folder of them: accept only what they signed",
    )
    args = parser.parse_args(arguments)
    keys = signing.trusted_keys(args.trusted_keys)
    manifest = open_artifact(args.folder, keys)
    signature = signing.describe_signature(args.folder, is_checked=keys is not None)
    print_report(console, manifest, args.folder, signature)


def _keygen(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(prog="python -m export keygen", description=signing.KEYGEN)
    signing.add_keygen_arguments(parser)
    signing.keygen(parser.parse_args(arguments), console)


def _sign(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(prog="python -m export sign", description=signing.SIGN)
    signing.add_sign_arguments(parser)
    signing.sign(parser.parse_args(arguments), console)


def _profile(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(prog="python -m export profile", description=operators.__doc__)
    operators.add_arguments(parser)
    operators.run(parser.parse_args(arguments), console)


def _compare(arguments: Sequence[str], console: Console) -> None:
    parser = _CommandParser(prog="python -m export compare", description=compare.__doc__)
    compare.add_arguments(parser)
    compare.run(parser.parse_args(arguments), console)


COMMANDS: dict[str, Command] = {
    "adopt": _adopt,
    "tune": _tune,
    "show": _show,
    "profile": _profile,
    "keygen": _keygen,
    "sign": _sign,
    "compare": _compare,
}


def _carry_out(
    prepare: Callable[[], ExportJob], file: Path | None, args: argparse.Namespace, console: Console
) -> None:
    """Export a model: a large one, from its file or folder, in a process of its own."""
    with contextlib.ExitStack() as stack:
        if is_large(file) and not args.profile:  # a profile needs the model, after its forms
            work = stack.enter_context(apart(prepare)).export
        else:
            work = functools.partial(export, prepare())
        artifact = work(stack.enter_context(progress_on(console)))
    print_summary(console, artifact.manifest, artifact.folder, left_out_told=True)


def _add_variants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants",
        type=values.names,
        metavar="A,B",
        help=f"which variants to build, of {', '.join(MAKERS)} (default: all that the model and "
        "this machine allow; trace only if script fails)",
    )


def _add_accuracy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-accuracy-drop",
        type=values.points,
        default=0.5,
        metavar="POINTS",
        help="leave out variants that lose more accuracy than this, in hundredths (default: 0.5)",
    )


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=local_path,
        default=Path("artifacts"),
        metavar="FOLDER",
        help="the repository to write to: FOLDER/MODEL/VERSION (default: artifacts)",
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="the version number to write (default: one more than the highest)",
    )


def _add_tuning(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    parser.add_argument(
        "--plan-precision",
        choices=get_args(Precision),
        help="the precision that a server computes in by default, at all batch sizes "
        "(default: float32 if a variant has it)",
    )
    parser.add_argument(
        "--max-batch-size",
        type=values.positive,
        metavar="N",
        help=f"time batches of up to N (default: the largest of its plan, else {MAX_BATCH})"
        if again
        else "verify and time batches of up to N; a server forms no larger ones, so give it if the "
        f"model will run on a GPU (default: {MAX_BATCH}, or, on a machine without a GPU, as many "
        f"items as eager PyTorch computes in {BATCH_S:g} s)",
    )
    parser.add_argument(
        "--threads",
        type=values.positive,
        metavar="N",
        help="time with N threads on the CPU (default: as many as a server with one replica uses: "
        "all usable cores but one)",
    )
    if not again:
        parser.add_argument(
            "--thorough",
            action="store_true",
            help="compare batches of many sizes with eager PyTorch, however long that takes "
            "(default: of a slow model at least of 1, 2, two others and the largest)",
        )
        parser.add_argument(
            "--integer-share",
            type=values.share,
            default=INTEGER_SHARE,
            metavar="SHARE",
            help="how many of an item's integers in an output may differ, such as the classes of "
            "pixels whose two highest scores are equal but for rounding, from 0 to 1 "
            f"(default: {INTEGER_SHARE:g}; recorded in the manifest)",
        )
        parser.add_argument(
            "--profile",
            action="store_true",
            help="write a Chrome trace and a table of operators for eager and every form",
        )


def _tuning(args: argparse.Namespace) -> TuneOptions:
    return TuneOptions(args.max_batch_size, args.threads, args.plan_precision)
