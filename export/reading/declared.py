"""Parses `adopt --input`, such as `ids=int64[-1,1<=seq<=512] in 0..30521`.

Omitted facts stay open here: running the model may find them, see `probing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args

from pydantic import ValidationError

from export.errors import UsageError
from export.reading import advice
from export.reading.codecs import EXAMPLE, first_of
from models.bounds import check_below
from models.padding import check_padding
from models.tensors import FREE_MOST, MAX_SIZE, Dimension, Dtype, TensorSpec

INPUT = re.compile(
    r"(?:([^=\[\]]+)=)?([a-z0-9]+)\[([^\[\]]*)\]"
    r"(\s+in\s+(-?[0-9]{1,20})?\.\.(?:(-?[0-9]{1,20})|<([A-Za-z][A-Za-z0-9_-]*))?)?(\s+or\s+nan)?"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
NUMBER = re.compile(r"-?[0-9]{1,10}")
FREE = re.compile(r"(?:([0-9]{1,10})<=)?(-1|[A-Za-z][A-Za-z0-9_-]*)(?:<=([0-9]{1,10}))?")
SIZES = (
    "a size is a whole number, -1 if it is free, or a name: free, and the same wherever the name "
    "occurs; free sizes may have bounds, such as 1<=seq<=512"
)

LONGEST_SOUND_S = 30  # unless --input says how many samples it may have

Range: TypeAlias = tuple[int | None, int | None]  # None: open at that end


@dataclass(frozen=True, slots=True)
class FreeAxis:
    """A free axis; None: not given.

    Attributes:
        at: index of the axis in an item.
        mask: the input that marks data and padding; None: it is not padded.
    """

    at: int
    name: str | None
    least: int | None = None
    most: int | None = None
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """What is known of an input; `range` is None if it was not given.

    `below` is the name of the size that its numbers are less than; the range then has no largest.
    `nan` says whether its numbers may be missing. `range_option` names what gives the range.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    free: tuple[FreeAxis, ...]
    range: Range | None = None
    below: str | None = None
    nan: bool = False
    range_option: str = "--input"

    @property
    def spec(self) -> TensorSpec:
        """The input in the manifest's form, with defaults for what is unknown.

        Raises:
            ValidationError: if it is inconsistent.
        """
        has_dimensions = any(
            (axis.name, axis.least, axis.most) != (None, None, None) for axis in self.free
        )
        fields = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": self.shape,
            "dimensions": [_dimension(axis) for axis in self.free] if has_dimensions else (),
            "minimum": self.range and self.range[0],
            "maximum": self.range and self.range[1],
            "below": self.below,
            "fill": self._fill,
            "nan": self.nan,
        }
        return TensorSpec.model_validate(fields)

    @property
    def _fill(self) -> int:
        """The value of padded places: 0, or the number in the range nearest to it."""
        least, most = self.range or (None, None)
        if not any(axis.mask for axis in self.free):
            return 0
        return max(least or 0, 0) if most is None else min(max(least or 0, 0), most)


@dataclass(frozen=True, slots=True)
class Unit:
    """Free axes of one size: all axes of one name, or one axis without a name.

    Attributes:
        places: (input, axis of an item), by index.
        label: its name in messages.
    """

    places: tuple[tuple[int, int], ...]
    label: str
    name: str | None
    least: int | None
    most: int | None


def read_inputs(
    texts: Sequence[str], pads: Sequence[str] = (), arguments: Sequence[str] = ()
) -> tuple[DeclaredInput, ...]:
    """Parse the inputs that the options describe, in order.

    Args:
        texts: each `--input`.
        pads: each `--pad`: NAME=MASK; at most one.
        arguments: the names of the model's arguments, for inputs without a name.

    Raises:
        UsageError: if one of them is wrong, or they contradict each other.
    """
    if not texts:
        raise UsageError(f"--input is required: the model's input, such as {EXAMPLE}")
    declarations = [_input(text) for text in texts]
    inputs = _with_bounds(
        [_with_name(declarations, at, arguments) for at in range(len(declarations))]
    )
    names = [each.name for each in inputs]
    if len(set(names)) < len(names):
        raise UsageError(f"--input: names must differ, got {names}")
    if len(pads) > 1:
        raise UsageError(
            f"--pad is given for {', '.join(pads)}: only one size can be padded. Items that differ "
            "in another free size do not share a batch; choose the size that differs most often"
        )
    for pad in pads:
        inputs = _with_padding(inputs, pad)
    for text, each in zip(texts, inputs, strict=True):
        try:
            _ = each.spec
        except ValidationError as error:
            raise UsageError(f"--input {text!r}: {first_of(error)}") from error
    try:
        check_below([each.spec for each in inputs])
    except ValueError as error:
        raise UsageError(f"--input: {error}") from error
    try:
        check_padding([each.spec for each in inputs], ())
    except ValueError as error:
        raise UsageError(f"--pad {''.join(pads)}: {error}") from error
    return inputs


def open_ended(declaration: DeclaredInput) -> TensorSpec:
    """Return an input whose sizes have no largest one unless it was given."""
    free = (
        replace(axis, most=MAX_SIZE) if axis.most is None else axis for axis in declaration.free
    )
    return replace(declaration, free=tuple(free)).spec


def units_of(inputs: Sequence[DeclaredInput]) -> list[Unit]:
    """Return all free axes, grouped by name, in order."""
    units: dict[object, Unit] = {}
    for number, each in enumerate(inputs):
        for axis in each.free:
            key = axis.name or (number, axis.at)
            label = repr(axis.name) if axis.name else f"axis {axis.at} of {each.name!r}"
            unit = units.get(key) or Unit((), label, axis.name, axis.least, axis.most)
            units[key] = replace(unit, places=(*unit.places, (number, axis.at)))
    return list(units.values())


def change_axes(
    inputs: Sequence[DeclaredInput],
    unit: Unit,
    *,
    name: str | None,
    least: int | None,
    most: int | None,
) -> tuple[DeclaredInput, ...]:
    """Return the inputs with this name and these bounds for the axes of a unit."""
    return tuple(
        replace(
            each,
            free=tuple(
                replace(axis, name=name, least=least, most=most)
                if (number, axis.at) in unit.places
                else axis
                for axis in each.free
            ),
        )
        for number, each in enumerate(inputs)
    )


def with_longest(
    inputs: Sequence[DeclaredInput], rate: int
) -> tuple[tuple[DeclaredInput, ...], tuple[str, ...]]:
    """Limit a sound, the first input, if it has no largest size.

    Args:
        inputs: as declared.
        rate: samples per second.

    Returns:
        the inputs, and a sentence on the limit if there was none.
    """
    for unit in units_of(inputs):
        if unit.places[0][0] == 0 and unit.most is None:
            most = max(unit.least or 0, LONGEST_SOUND_S * rate)
            note = (
                f"sounds may have up to {most} samples ({most / rate:g} s), because --input does "
                "not say how many; n<=SAMPLES in it states another limit"
            )
            new_inputs = change_axes(inputs, unit, name=unit.name, least=unit.least, most=most)
            return new_inputs, (note,)
    return tuple(inputs), ()


def _with_name(inputs: Sequence[DeclaredInput], at: int, arguments: Sequence[str]) -> DeclaredInput:
    """Return an input with its name, that of the model's argument, or a number."""
    if inputs[at].name:
        return inputs[at]
    name = arguments[at] if at < len(arguments) else ""
    if not NAME.fullmatch(name) or name in {each.name for each in inputs}:
        name = "input" if len(inputs) == 1 else f"input_{at}"
    return replace(inputs[at], name=name)


def _input(text: str) -> DeclaredInput:
    """Parse an input; its name is empty if it has none."""
    match = INPUT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text!r} is not dtype[shape], such as {EXAMPLE}, or NAME=dtype[shape] in "
            "LEAST..MOST for integers, in 0..<n for indices into the free size n; "
            "`or nan` for floats that may be missing"
        )
    dtype = next((each for each in get_args(Dtype) if each == match[2]), None)
    if dtype is None:
        raise UsageError(
            f"--input {text!r}: unknown dtype {match[2]!r}; there are {', '.join(get_args(Dtype))}"
            f"{advice.of_input(match[2])}"
        )
    shape, free = [], []
    for at, size in enumerate(map(str.strip, match[3].split(","))):
        if NUMBER.fullmatch(size):
            shape.append(int(size))
            free += [FreeAxis(at - 1, None)] if size == "-1" and at else []
        elif (bounds := FREE.fullmatch(size)) is not None and at:
            shape.append(-1)
            size_name = None if bounds[2] == "-1" else bounds[2]
            free.append(FreeAxis(at - 1, size_name, _whole(bounds[1]), _whole(bounds[3])))
        elif size or at:
            raise UsageError(f"--input {text!r}: {_wrong_size(size, at)}")
    range_ = (_whole(match[5]), _whole(match[6])) if match[4] else None
    nan = match[8] is not None
    return DeclaredInput(match[1] or "", dtype, tuple(shape), tuple(free), range_, match[7], nan)


def _wrong_size(size: str, at: int) -> str:
    if at == 0:
        return f"axis 0 is the batch and must be -1, got {size!r}"
    return f"{size!r} is not a size: {SIZES}"


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _with_bounds(inputs: Sequence[DeclaredInput]) -> tuple[DeclaredInput, ...]:
    """Apply the bounds given for a name in one place to all its places."""
    axes: dict[str, FreeAxis] = {}
    for axis in (axis for each in inputs for axis in each.free):
        if axis.name is not None:
            before = axes.get(axis.name, axis)
            least = _one_bound(axis.name, "least", before.least, axis.least)
            most = _one_bound(axis.name, "most", before.most, axis.most)
            axes[axis.name] = replace(axis, least=least, most=most)
    return tuple(
        replace(
            each,
            free=tuple(
                axis if axis.name is None else replace(axes[axis.name], at=axis.at)
                for axis in each.free
            ),
        )
        for each in inputs
    )


def _one_bound(name: str, end: str, one: int | None, other: int | None) -> int | None:
    if one is not None and other is not None and one != other:
        raise UsageError(
            f"--input: {name!r} is at {end} {one} in one place and {other} in another; one name "
            "has one size"
        )
    return other if one is None else one


def _with_padding(inputs: Sequence[DeclaredInput], pad: str) -> tuple[DeclaredInput, ...]:
    """Mark the axes of the name in `--pad NAME=MASK` as padded; their least size is 1."""
    name, _, mask = pad.partition("=")
    names = {axis.name for each in inputs for axis in each.free if axis.name is not None}
    if name not in names or not mask:
        raise UsageError(
            f"--pad {pad!r} is not NAME=MASK: a free size that --input names, and the input that "
            f"is 1 where an item has data; names of sizes are: {', '.join(sorted(names)) or 'none'}"
        )
    return tuple(
        replace(
            each,
            free=tuple(
                replace(axis, mask=mask, least=1 if axis.least is None else axis.least)
                if axis.name == name
                else axis
                for axis in each.free
            ),
        )
        for each in inputs
    )


def _dimension(axis: FreeAxis) -> Dimension:
    least = axis.least or 0
    most = max(FREE_MOST, least) if axis.most is None else axis.most
    return Dimension(name=axis.name, least=least, most=most, mask=axis.mask)
