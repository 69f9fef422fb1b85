"""`torchlane adopt FILE`: exports a model that was created elsewhere.

FILE is a torch.export program, TorchScript, an ONNX model, a TorchServe archive that contains one
of them, or a folder in Hugging Face's format. Its Python code is never run and nothing is
unpickled; the outputs are found by running the model on samples.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from export.adoption import examples, foreign, huggingface, outputs
from export.adoption.example_files import InputContract
from export.errors import ExportError, UsageError, reason
from export.probing import probe_process
from export.probing.samples import narrow
from export.reading import categories, codecs, model_files, pictured, preprocessing, sounds
from export.reading.declared import open_ended, read_inputs, with_longest
from export.reading.mar import (
    MANIFEST,
    MAX_LABELS_BYTES,
    PLAIN,
    Defaults,
    labels_of,
    parse_json,
    read_mar,
)
from export.reading.onnx_files import is_onnx, serving
from export.reading.programs import Program
from export.reading.text_files import read_text
from export.variants.graphs import OnnxModule
from export.variants.torchscript import to_torchscript
from models.definitions.definition import Definition
from models.system.local_paths import NotLocal, local_path
from models.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Adoption:
    """A model from elsewhere, ready to be exported.

    Attributes:
        definition: like one in `models/definitions`; `build` returns TorchScript unchanged.
        warnings: a sentence on each part that could not be adopted.
        hint: a sentence on an option that may have been forgotten.
        findings: a sentence on each fact found by running the model, then the options that state
            the same.
    """

    name: str
    definition: Definition
    warnings: tuple[str, ...]
    hint: str | None
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The content of the file; `origin` is a sentence about its source."""

    data: bytes
    what: str
    origin: str
    defaults: Defaults = PLAIN
    name: str | None = None
    labels: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()
    program: Program | None = None


def adopt(args: argparse.Namespace) -> Adoption:
    """Read the file, run its model on samples, and describe it.

    Returns:
        the model to export; writes nothing.

    Raises:
        UsageError: if the arguments are wrong.
        ExportError: if the file is invalid, or its model cannot be served.
    """
    if huggingface.is_meant(args):
        folder_name, definition = huggingface.adopt_folder(args)
        name = _name(args.name, folder_name)
        files = definition.files() if definition.files else {}
        tokenizer = next(iter(files.values()), None)
        real_inputs = examples.read_examples(
            args, InputContract(definition.inputs, definition.codec, tokenizer)
        )
        if real_inputs is not None:
            definition = examples.with_calibration(
                real_inputs, examples.with_samples(real_inputs, definition)
            )
        return Adoption(name, definition, (), None, ())
    huggingface.check_options(args)
    return _adopt_file(args)


def _adopt_file(args: argparse.Namespace) -> Adoption:
    source = _open(args.file)
    if args.preprocess is not None:
        defaults, notes = preprocessing.apply(args, source.defaults)
        source = replace(source, defaults=defaults, warnings=(*source.warnings, *notes))
    input_texts = args.input or source.defaults.inputs
    if not (args.name or source.name or input_texts):
        raise UsageError(
            "--name and --input are required: the model's name in the repository, and its input, "
            f"such as {codecs.EXAMPLE}"
        )
    name = _name(args.name, source.name)
    digest = _digest(source)
    module = _module(source)
    input_categories = categories.read_categories(args)
    declarations = read_inputs(input_texts, args.pad or (), foreign.argument_names(module))
    declarations = categories.with_ranges(declarations, input_categories)
    if args.codec == "audio":
        declarations, notes = with_longest(declarations, sounds.rate_of(args))
        source = replace(source, warnings=(*source.warnings, *notes))
    inputs = tuple(each.spec for each in declarations)
    output_names, first, file = _output_options(args)
    labels = None if file is None else _read_labels(file)
    codec = codecs.codec_of(args, source.defaults, inputs, labels or source.labels)
    codec = codecs.with_categories(codec, input_categories, inputs)
    notes = codecs.assumptions(args, source.defaults, codec)
    source = replace(source, warnings=(*source.warnings, *notes))
    original = source.program.original if source.program else None
    real_inputs = examples.read_examples(
        args, InputContract(tuple(map(open_ended, declarations)), codec)
    )
    real = real_inputs.examples if real_inputs else None
    model_outputs, samples = foreign.infer(
        module, narrow(inputs), codec, output_names, original, real
    )
    served_outputs = codecs.with_counts(
        args, sorted(model_outputs, key=lambda spec: spec.name != first)
    )
    served_outputs = pictured.with_pictures(args, served_outputs)
    codecs.check_outputs(codec, served_outputs, by_command=labels is not None)
    names = [[spec.name for spec in each] for each in (model_outputs, served_outputs)]
    ways = outputs.ways(module, *names, picked=bool(output_names))
    findings = probe_process.learn(
        source.data, source.what, declarations, samples.shapes, examples=real
    )
    if real_inputs is not None:
        findings = examples.with_item_sizes(real_inputs, findings)
    inputs = tuple(each.spec for each in findings.inputs)
    codec = codecs.with_sizes(codec, inputs)
    samples = replace(samples, inputs=inputs, codec=codec)
    definition = Definition(
        description=args.description or source.origin,
        inputs=inputs,
        outputs=served_outputs,
        codec=codec,
        build=functools.partial(_build, args.file, digest, len(inputs), ways),
        train=None,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=lambda: categories.with_names(
            samples.example(), [spec.name for spec in inputs], input_categories
        ),
    )
    if real_inputs is not None:
        real_inputs.check(inputs)
        definition = examples.with_calibration(real_inputs, definition, samples.shapes)
    notes = (*findings.notes, f"that is {_options(inputs)}") if findings.notes else ()
    hint = codecs.hint(args, codec, inputs)
    return Adoption(name, definition, source.warnings, hint, notes)


def _options(inputs: Sequence[TensorSpec]) -> str:
    return " ".join(f"--input '{spec}'" for spec in inputs)


def _build(file: Path, digest: bytes, inputs: int, ways: Sequence[outputs.Way] | None) -> nn.Module:
    """Read the model again, so that nobody has to keep a large one in memory.

    Raises:
        ExportError: if the file has changed.
    """
    source = _open(file)
    if _digest(source) != digest:
        raise ExportError(f"{file.name} changed while it was adopted: run the command again")
    module = _module(source)
    if isinstance(module, OnnxModule):
        return serving(module, [str(name) for _, name in ways] if ways else module.names)
    if ways is None:
        return module
    wrapper = outputs.around(module, inputs, ways)
    if not isinstance(module, torch.jit.ScriptModule):
        return wrapper
    try:
        return to_torchscript(wrapper, (), "script")
    except RuntimeError as error:
        raise ExportError(f"the model's outputs cannot be told apart: {reason(error)}") from error


def _digest(source: _Source) -> bytes:
    return hashlib.sha256(source.data).digest()


def _module(source: _Source) -> nn.Module:
    if source.program is not None:
        return source.program.module
    return model_files.load(source.data, source.what)


def _open(file: Path) -> _Source:
    source = _Source(_read(file), file.name, f"Adopted from {file.name}.")
    if not is_onnx(source.data, source.what):
        names = model_files.archive_names(source.data, source.what)
        if MANIFEST in names:
            source = _open_archive(source, names)
    program = model_files.program_in(source.data, source.what)
    if program is None:
        return source
    defaults = replace(source.defaults, inputs=source.defaults.inputs or program.inputs)
    return replace(source, defaults=defaults, program=program)


def _open_archive(archive: _Source, names: list[str]) -> _Source:
    """Return the model in a TorchServe archive, with the archive's information about it."""
    mar = read_mar(archive.data, names, archive.what)
    version = f", version {mar.version}" if mar.version else ""
    return _Source(
        data=mar.data,
        what=f"{mar.serialized_file} in {archive.what}",
        origin=f"Adopted from {archive.what}: {mar.model}{version}.",
        defaults=mar.defaults,
        name=mar.model,
        labels=mar.labels,
        warnings=mar.warnings(),
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _name(option: str | None, default: str | None) -> str:
    name = option or default
    if name is None:
        raise UsageError("--name is required: the model's name in the repository")
    if not outputs.is_name(name):
        raise UsageError(
            f"{name!r} cannot be a model's name: give --name with 1 to 64 letters, digits, _ and "
            "-, starting with a letter or a digit"
        )
    return name


def _output_options(args: argparse.Namespace) -> tuple[tuple[str, ...], str | None, Path | None]:
    """Return the names of outputs, the first one of them, and the file of its labels."""
    pairs = [text.partition("=") for text in args.output or ()]
    names = tuple(name for name, _, _ in pairs)
    try:
        label_files = [(name, local_path(file)) for name, equals, file in pairs if equals]
    except NotLocal as error:
        raise UsageError(f"--output NAME=FILE: {error}") from error
    for name in names:
        if not outputs.is_name(name):
            raise UsageError(
                f"--output {name!r}: a name has 1 to 64 letters, digits, _ and -, and starts with "
                "a letter or a digit"
            )
    if bare := [name for name, equals, file in pairs if equals and not file]:
        raise UsageError(f"--output '{bare[0]}=': the file of its labels is missing")
    if len(set(names)) < len(names):
        raise UsageError(f"--output: names must differ, got {', '.join(names)}")
    if len(label_files) + (args.labels is not None) > 1:
        raise UsageError("labels can be given only once: --labels FILE, or one --output NAME=FILE")
    return names, *(label_files[0] if label_files else (None, args.labels))


def _read_labels(file: Path) -> tuple[str, ...]:
    text = read_text("--labels", file, MAX_LABELS_BYTES)
    try:
        if text.lstrip()[:1] in ("[", "{"):
            return labels_of(parse_json(text, file.name), file.name)
        return labels_of([line.strip() for line in text.rstrip().splitlines()], file.name)
    except ExportError as error:
        raise UsageError(f"--labels: {error}") from error
