"""`python -m export adopt FILE`: a model that somebody else made, as a definition to export.

FILE is TorchScript, or a TorchServe archive that holds TorchScript. No Python of theirs is run and
nothing is unpickled; what the model gives is found out by running it on samples.
"""

from __future__ import annotations

import argparse
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from export import foreign
from export.errors import ExportError, UsageError
from export.mar import MANIFEST, MAX_LABELS_BYTES, PLAIN, Defaults, labels_of, parse_json, read_mar
from models.definitions.definition import Definition
from models.manifest import (
    CodecSpec,
    ImageCodecSpec,
    PicturePreprocess,
    Polarity,
    Scores,
    TensorCodecSpec,
)
from models.tensors import Dtype, Name, TensorSpec

EXAMPLE = "--input 'float32[-1,3,224,224]'"
INPUT = re.compile(r"(?:([^=\[\]]+)=)?([a-z0-9]+)\[([-0-9, ]*)\]")
OF_PICTURES = ("mean", "std", "polarity", "fit", "resize_shorter")  # options of --codec image
RESIZE = 256 / 224  # the customary share of the larger side that a crop keeps


@dataclass(frozen=True, slots=True)
class Adopted:
    """A model from elsewhere, ready to be exported.

    Attributes:
        name: what it is called in the repository.
        definition: as if it stood in `models/definitions`; `build` gives a ScriptModule.
        warnings: a sentence on each thing that could not be taken over.
    """

    name: str
    definition: Definition
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What is in the file; `origin` is a sentence on where it comes from."""

    data: bytes
    what: str
    origin: str
    defaults: Defaults = PLAIN
    name: str | None = None
    labels: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `adopt` reads: FILE and the options that describe its model."""
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a TorchScript file (.pt), or an archive (.mar)")
    add("--name", metavar="N", help="the model's name (default: what a .mar says; else needed)")
    add(
        "--input",
        action="append",
        metavar="SPEC",
        help="dtype[shape] of an input, or NAME=dtype[shape], such as 'float32[-1,3,224,224]'; "
        "axis 0 is the batch and -1, elsewhere -1 is a free dimension; once per input, in the "
        "order in which the model takes them",
    )
    add(
        "--labels",
        type=Path,
        metavar="FILE",
        help="of the first output: one per line, or JSON: a list, or an object index -> label",
    )
    add("--codec", choices=("tensor", "image"), help="what clients send (default: tensor)")
    add("--scores", choices=get_args(Scores), help="what makes scores of it (default: none)")
    add("--description", metavar="TEXT", help="one sentence on the model")
    picture = parser.add_argument_group("for --codec image")
    add = picture.add_argument
    add("--mean", metavar="X,X,X", help="subtracted from values of 0 to 1 (default: 0)")
    add("--std", metavar="X,X,X", help="what they are then divided by (default: 1)")
    add("--polarity", choices=get_args(Polarity), help="(default: light-on-dark, as it comes)")
    add("--fit", choices=("pad", "crop"), help="fill the rest, or cut the middle (default: pad)")
    add(
        "--resize-shorter",
        type=int,
        metavar="PIXELS",
        help="for --fit crop: the picture's shorter side before the cut (default: 256 for 224)",
    )


def adopt(parsed: argparse.Namespace) -> Adopted:
    """Look at the file, run its model on samples, and describe it.

    Args:
        parsed: of a parser with `add_arguments`.

    Returns:
        what can be exported; nothing is written yet.

    Raises:
        UsageError: if the arguments are wrong.
        ExportError: if the file is not what it should be, or its model cannot be served.
    """
    source = _open(parsed.file)
    name = _name(parsed.name, source)
    inputs = _inputs(parsed.input or source.defaults.inputs)
    given = None if parsed.labels is None else _read_labels(parsed.labels)
    codec = _codec(parsed, source.defaults, inputs, given or source.labels)
    module = foreign.load(source.data, source.what)
    outputs, samples = foreign.infer(module, inputs, codec)
    _check_outputs(codec, outputs[0], by_command=given is not None)
    definition = Definition(
        description=parsed.description or source.origin,
        inputs=inputs,
        outputs=outputs,
        codec=codec,
        build=functools.partial(foreign.load, source.data, source.what),
        train=None,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=samples.example,
    )
    return Adopted(name, definition, source.warnings)


def _open(file: Path) -> _Source:
    data = _read(file)
    names = foreign.archive_names(data, file.name)
    if MANIFEST not in names:
        return _Source(data, file.name, origin=f"Adopted from {file.name}.")
    mar = read_mar(data, names, file.name)
    version = f", version {mar.version}" if mar.version else ""
    return _Source(
        data=mar.data,
        what=f"{mar.serialized_file} in {file.name}",
        origin=f"Adopted from {file.name}: {mar.model}{version}.",
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


def _name(wanted: str | None, source: _Source) -> str:
    name = wanted or source.name
    if name is None:
        raise UsageError("--name is needed: what the model will be called")
    try:
        return TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise UsageError(
            f"{name!r} cannot be a model's name: say --name with 1 to 64 letters, digits, _ and -, "
            "of which the first is a letter or a digit"
        ) from error


def _inputs(given: tuple[str, ...] | list[str]) -> tuple[TensorSpec, ...]:
    if not given:
        raise UsageError(f"--input is needed: what the model takes, such as {EXAMPLE}")
    names = ["input"] if len(given) == 1 else [f"input_{index}" for index in range(len(given))]
    specs = tuple(_input(text, name) for text, name in zip(given, names, strict=True))
    if len({spec.name for spec in specs}) < len(specs):
        raise UsageError(f"--input: names must differ, got {[spec.name for spec in specs]}")
    return specs


def _input(text: str, name: str) -> TensorSpec:
    found = INPUT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--input {text!r} is not dtype[shape], such as {EXAMPLE}")
    if found[2] not in get_args(Dtype):
        raise UsageError(
            f"--input {text!r}: unknown dtype {found[2]!r}; there are {', '.join(get_args(Dtype))}"
        )
    try:
        shape = tuple(int(size) for size in found[3].split(",") if size.strip())
        return TensorSpec.model_validate(
            {"name": found[1] or name, "dtype": found[2], "shape": shape}
        )
    except ValidationError as error:
        raise UsageError(f"--input {text!r}: {_first(error)}") from error
    except ValueError as error:
        raise UsageError(f"--input {text!r}: sizes are whole numbers, or -1") from error


def _codec(
    parsed: argparse.Namespace,
    defaults: Defaults,
    inputs: tuple[TensorSpec, ...],
    labels: tuple[str, ...] | None,
) -> CodecSpec:
    if (parsed.codec or defaults.codec) == "tensor":
        if strays := [name for name in OF_PICTURES if getattr(parsed, name) is not None]:
            option = strays[0].replace("_", "-")
            raise UsageError(f"--{option} is for pictures: say --codec image as well")
        return TensorCodecSpec(labels=labels, scores=parsed.scores or defaults.scores)
    return ImageCodecSpec(
        preprocess=_preprocess(parsed, defaults, inputs),
        labels=labels,
        scores=parsed.scores or defaults.scores,
    )


def _preprocess(
    parsed: argparse.Namespace, defaults: Defaults, inputs: tuple[TensorSpec, ...]
) -> PicturePreprocess:
    shape = inputs[0].item_shape
    fits = len(shape) == 3 and shape[0] in (1, 3) and inputs[0].is_fixed
    if len(inputs) != 1 or not fits or inputs[0].dtype != "float32":
        raise UsageError(
            "--codec image needs one --input float32[-1,C,H,W], where C is 1 or 3 and H and W are "
            f"given, such as {EXAMPLE}"
        )
    channels, height, width = shape
    fit = parsed.fit or defaults.fit
    shorter = parsed.resize_shorter
    if fit == "crop" and shorter is None:
        shorter = round(max(width, height) * RESIZE)
    fields = {
        "width": width,
        "height": height,
        "channels": channels,
        "mean": _floats("--mean", parsed.mean) or defaults.mean or (0.0,) * channels,
        "std": _floats("--std", parsed.std) or defaults.std or (1.0,) * channels,
        "polarity": parsed.polarity or "light-on-dark",
        "fit": fit,
        "resize_shorter": shorter,
    }
    try:
        return PicturePreprocess.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"--codec image: {_first(error)}") from error


def _floats(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: numbers with commas between, one per channel") from (
            error
        )


def _read_labels(file: Path) -> tuple[str, ...]:
    data = _read(file)
    if len(data) > MAX_LABELS_BYTES:
        raise UsageError(f"{file} has {len(data):,} bytes; at most {MAX_LABELS_BYTES:,} are read")
    try:
        if data.lstrip()[:1] in (b"[", b"{"):
            return labels_of(parse_json(data, file.name), file.name)
        lines = data.decode("utf-8-sig").rstrip().splitlines()
        return labels_of([line.strip() for line in lines], file.name)
    except (ExportError, UnicodeDecodeError) as error:
        raise UsageError(f"--labels: {error}") from error


def _check_outputs(codec: CodecSpec, first: TensorSpec, *, by_command: bool) -> None:
    """Raise where labels or scores do not fit; whose fault it is depends on who said them."""
    labels = codec.labels
    if labels is not None and first.item_shape != (len(labels),):
        kind = UsageError if by_command else ExportError
        raise kind(
            f"{len(labels)} labels need a first output of shape [-1, {len(labels)}], the model's "
            f"is {list(first.shape)}; say --labels with a file that fits"
        )
    if codec.scores == "softmax" and not first.item_shape:
        raise UsageError(f"--scores softmax needs more than one number, got {list(first.shape)}")


def _first(error: ValidationError) -> str:
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
