"""The command `torchlane export handler`, and what `show` says about a handler."""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError
from rich.console import Console

from export.artifact import choose_version, digest_of, publish, staging_folder, write_file
from export.destination import destination
from export.errors import ExportError, UsageError
from export.handlers.host import Answer, running
from export.handlers.source import Declared, interpreter_of, read_source
from export.handlers.torchserve import ENTRY, missing_packages, unpack
from export.pipeline import git_commit
from export.progress import say
from models.handlers import (
    CODE_FILE,
    MAX_CODE_BYTES,
    HandlerExample,
    HandlerLimits,
    HandlerManifest,
    declared_tensors,
    media_type_of,
    pack_code,
)
from models.manifest import SCHEMA_VERSION
from torchlane.handlers.api import MAX_MEDIA_TYPE, MEDIA_TYPE
from torchlane.handlers.declarations import read_tensors

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
CONCURRENCY = 8  # threads
CONCURRENT = 32  # of `async def predict`: as many calls of a model may share a batch


def run(args: argparse.Namespace, console: Console) -> None:
    """Run `export handler`.

    Raises:
        UsageError: if an option, the source or an example is wrong.
        ExportError: if the handler cannot be run, fails on an example, or cannot be written.
    """
    source: Path = args.source
    if not source.exists():
        raise UsageError(f"{source} does not exist")
    if source.suffix.lower() == ".mar":
        with tempfile.TemporaryDirectory(prefix="torchlane-") as folder:
            _export_archive(args, console, Path(folder))
        return
    for option, value in (("--model", args.served_model), ("--model-returns", args.served_returns)):
        if value is not None:
            raise UsageError(
                f"{option} is for TorchServe archives (.mar); a torchlane.Handler names what it "
                'calls in its class, models = ("detector",)'
            )
    name = args.name or source.stem
    declared = read_source(source, args.entry, name)
    _export(args, console, source, name, declared)


def _export_archive(args: argparse.Namespace, console: Console, folder: Path) -> None:
    if args.entry is not None or (args.concurrency or 1) != 1:
        option = "--entry" if args.entry is not None else "--concurrency"
        raise UsageError(
            f"{option} is not for TorchServe archives, whose handlers answer one batch after the "
            "other; --processes runs several at once"
        )
    archive = unpack(args.source, folder, args.served_model, args.server, args.served_returns)
    args.concurrency = 1
    for sentence in archive.warnings:
        say(console, f"warning: {sentence}")
    if missing := missing_packages(folder, archive.requirements, args.python):
        say(
            console,
            f"warning: {args.python} lacks {', '.join(missing)}, which the archive's "
            f"{archive.requirements} names; name an interpreter that has them with --python",
        )
    name = args.name or archive.model
    declared = read_source(folder, ENTRY, name)
    weights = None
    if args.served_model is not None and archive.weights is not None:
        weights = (folder / archive.weights).read_bytes()
        (folder / archive.weights).unlink()  # the served model is in its place
    try:
        calls = _export(args, console, folder, name, declared)
    except ExportError as error:
        if weights is None or archive.weights is None:
            raise
        say(console, f"without {archive.weights} it fails ({error}); now with it")
        (folder / archive.weights).write_bytes(weights)
        calls = _export(args, console, folder, name, declared)
    if args.served_model is not None and not calls:
        say(
            console,
            f"warning: no example calls self.model, so that {args.served_model} is not used",
        )


def _export(
    args: argparse.Namespace, console: Console, source: Path, name: str, declared: Declared
) -> int:
    """Write the artifact of a handler; returns how often it has called models.

    Raises:
        UsageError, ExportError: see `run`.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a handler; use letters, digits, - and _, as in --name shop"
        )
    if args.server is not None and urlsplit(args.server).scheme not in ("http", "https"):
        raise UsageError(f"--server must be a URL such as http://127.0.0.1:8000, got {args.server}")
    if declared.models and args.server is None:
        raise UsageError(
            f"{declared.entry} calls {', '.join(map(str, declared.models))}: start a server that "
            "has them with `torchlane serve`, and give its URL with --server http://127.0.0.1:8000"
        )
    limits = _limits(args, declared.max_batch_size)
    code = _packed(source, args.source)
    examples = [_read(path) for path in args.example]
    kinds = [_media_type(path, args.media_type) for path in args.example]
    interpreter = interpreter_of(source, args.python)
    with running(code, declared.entry, limits, args.server, args.python) as host:
        answers = [
            _answer(path, host.ask(body, kind))
            for path, body, kind in zip(args.example, examples, kinds, strict=True)
        ]
    if args.concurrency is None and host.about.get("concurrent") is True:
        limits = limits.model_copy(update={"concurrency": CONCURRENT})
    with destination(args.out) as target:
        version = choose_version(target.folder / name, args.version)
        with staging_folder(target.folder, name) as staging:
            write_file(staging / CODE_FILE, code)
            golden = []
            for index, (body, kind, answer) in enumerate(
                zip(examples, kinds, answers, strict=True)
            ):
                request, reply = f"request-{index}", f"answer-{index}"
                write_file(staging / request, body)
                write_file(staging / reply, answer.body)
                golden.append(
                    HandlerExample(
                        request=request,
                        media_type=kind,
                        answer=reply,
                        status=answer.status,
                        answer_type=answer.media_type,
                    )
                )
            manifest = HandlerManifest(
                schema_version=SCHEMA_VERSION,
                kind="handler",
                model=name,
                version=version,
                description=args.description or declared.description,
                entry=declared.entry,
                models=declared.models,
                media_types=tuple(dict.fromkeys(kinds)),
                request_schema=host.about.get("schema"),
                streams=host.about.get("streams") is True,
                inputs=declared_tensors(read_tensors(host.about.get("inputs", {}), "inputs")),
                outputs=declared_tensors(read_tensors(host.about.get("outputs", {}), "outputs")),
                limits=limits,
                golden=tuple(golden),
                python_version=interpreter.version,
                packages=interpreter.packages,
                files={path.name: digest_of(path) for path in sorted(staging.iterdir())},
                created_at=dt.datetime.now(dt.UTC),
                git_commit=git_commit(),
            )
            folder = publish(staging, manifest)
        where = target.deliver(folder)
    show(console, manifest, where)
    flag = "" if args.out == Path("artifacts") else f" --model-dir {args.out}"
    say(console, f"serve it: torchlane serve --handlers on{flag}")
    if args.python != sys.executable:
        say(console, f'with, in the models file: [models.{name}] python = "{args.python}"')
    return host.calls


def show(
    console: Console, manifest: HandlerManifest, where: str | Path, signature: str = ""
) -> None:
    """Print what a handler's artifact holds."""
    say(console, f"{manifest.model} version {manifest.version}, a handler: {where}")
    for word, what in _rows(manifest, signature):
        say(console, f"{word:<9} {what}")


def _rows(manifest: HandlerManifest, signature: str) -> Iterator[tuple[str, str]]:
    if manifest.description:
        yield "does", manifest.description
    method = "predict_batch" if manifest.limits.max_batch_size > 1 else "predict"
    yield "runs", f"{manifest.entry}.{method}" + (", which streams" * manifest.streams)
    if manifest.request_schema is not None:
        yield "takes", str(manifest.request_schema.get("title", "a pydantic model"))
    for part, tensors in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        if tensors:
            yield part, ", ".join(f"{each.name}: {each.declaration}" for each in tensors)
    yield "calls", ", ".join(map(str, manifest.models)) or "no model"
    limits = manifest.limits
    processes = f"{limits.processes} processes, {limits.concurrency} requests in each"
    yield "limits", f"{processes}, {limits.seconds:g} s, {limits.memory_bytes >> 20} MiB"
    for each in manifest.golden:
        request = f"{each.media_type}, {manifest.files[each.request].bytes:,} bytes"
        answer = f"{each.answer_type}, {manifest.files[each.answer].bytes:,} bytes"
        yield "example", f"{request} -> {each.status} {answer}"
    packages = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
    yield "made with", f"Python {manifest.python_version}" + (f", {packages}" * bool(packages))
    if signature:
        yield "signature", signature


def _limits(args: argparse.Namespace, max_batch_size: int) -> HandlerLimits:
    try:
        return HandlerLimits(
            processes=args.processes,
            concurrency=args.concurrency or CONCURRENCY,
            seconds=args.seconds,
            memory_bytes=args.memory << 20,
            max_batch_size=max_batch_size,
            queue_limit=args.queue_limit,
            body_bytes=args.max_body_bytes,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{first['loc'][0]} = {first['input']}: {first['msg']}") from error


def _packed(source: Path, what: Path) -> bytes:
    """The files of a handler.

    Args:
        source: the file or folder with them.
        what: what the user has named.

    Raises:
        UsageError: if they cannot be read, or are too large.
    """
    try:
        code = pack_code(source)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    if len(code) > MAX_CODE_BYTES:
        raise UsageError(
            f"{what} has {len(code):,} bytes, the limit is {MAX_CODE_BYTES:,}; large weights "
            "belong into a model of their own"
        )
    return code


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--example {path}: {error.strerror}") from error


def _media_type(path: Path, option: str | None) -> str:
    if option is not None:
        if not MEDIA_TYPE.fullmatch(option) or len(option) > MAX_MEDIA_TYPE:
            raise UsageError(f"--media-type must be a type such as image/png, got {option[:80]!r}")
        return option
    guess = media_type_of(path)
    if guess is None:
        raise UsageError(
            f"--example {path}: the media type of {path.suffix or 'this file'} is unknown; name it "
            "with --media-type"
        )
    return guess


def _answer(path: Path, answer: Answer) -> Answer:
    if answer.status >= 400:
        text = answer.body[:200].decode("utf-8", "replace")
        raise ExportError(f"the handler answers {answer.status} to --example {path}: {text}")
    return answer
