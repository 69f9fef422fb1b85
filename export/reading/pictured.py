"""The options `--as` and `--palette`: outputs that are pictures."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from export.errors import UsageError
from export.reading.codecs import first_of
from export.reading.text_files import read_text
from models.pictured import MAX_CLASSES, ImageOutput, MaskOutput
from models.tensors import TensorSpec

MAX_PALETTE_BYTES = 1 << 20
FORM = re.compile(r"(?:([^=]+)=)?\s*(image|mask)(?:\s+in\s+(\S+?)\.\.(\S+))?\s*")
LINE = re.compile(r"#([0-9A-Fa-f]{6})(?:\s+(.*\S))?\s*")
EXAMPLES = "image, 'restored=image in -1..1' or segments=mask"


def with_pictures(
    args: argparse.Namespace, outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Apply both options to the outputs.

    Raises:
        UsageError: if they are malformed, or do not fit the outputs.
    """
    forms: dict[str, ImageOutput | MaskOutput] = {}
    for text in getattr(args, "as") or ():
        name, form = _form(text)
        name = name or outputs[0].name
        if name in forms:
            raise UsageError(f"--as: {name!r} is declared twice")
        forms[name] = form
    names = [spec.name for spec in outputs]
    if strays := [name for name in forms if name not in names]:
        raise UsageError(f"--as: {strays[0]!r} is not an output; these are: {', '.join(names)}")
    if args.palette is not None:
        masks = [name for name, form in forms.items() if isinstance(form, MaskOutput)]
        if len(masks) != 1:
            raise UsageError(f"--palette is for one output with --as mask, got {len(masks)}")
        forms[masks[0]] = _read_palette(args.palette)
    return tuple(
        _with_picture(spec, forms[spec.name]) if spec.name in forms else spec for spec in outputs
    )


def _form(text: str) -> tuple[str | None, ImageOutput | MaskOutput]:
    match = FORM.fullmatch(text)
    if match is None or (match[2] == "mask" and match[3] is not None):
        raise UsageError(f"--as {text!r}: expected [NAME=]FORM, such as {EXAMPLES}")
    if match[2] == "mask":
        return match[1], MaskOutput()
    if match[3] is None:
        return match[1], ImageOutput()
    try:
        return match[1], ImageOutput(range=(float(match[3]), float(match[4])))
    except ValidationError as error:
        raise UsageError(f"--as {text!r}: {first_of(error)}") from error
    except ValueError as error:
        raise UsageError(f"--as {text!r}: a range has two numbers, such as -1..1") from error


def _read_palette(file: Path) -> MaskOutput:
    lines = read_text("--palette", file, MAX_PALETTE_BYTES).rstrip().splitlines()
    if not 1 <= len(lines) <= MAX_CLASSES:
        raise UsageError(
            f"--palette: {file.name} has {len(lines)} lines; it must have one for each class, 1 to "
            f"{MAX_CLASSES}"
        )
    matches = [LINE.fullmatch(line) for line in lines]
    names = [match[2] for match in matches if match is not None]
    if None in matches or (None in names and any(names)):
        raise UsageError(
            f"--palette: each line of {file.name} must be a colour such as #804080, and all or no "
            "lines must have the name of a class after it"
        )
    colours = tuple(f"#{match[1].lower()}" for match in matches if match is not None)
    classes = () if None in names else tuple(names)
    try:
        return MaskOutput(palette=colours, classes=classes)
    except ValidationError as error:
        raise UsageError(f"--palette: {file.name}: {first_of(error)}") from error


def _with_picture(spec: TensorSpec, form: ImageOutput | MaskOutput) -> TensorSpec:
    fields = {**dict(spec), "picture": form}
    try:
        return TensorSpec.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"--as: {first_of(error)}") from error
