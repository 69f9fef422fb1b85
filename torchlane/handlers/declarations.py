"""The tensors that a handler declares, such as `inputs = {"x": "float32[-1,4]"}`.

The text of a tensor is that of `torchlane adopt --input`, without `or nan`. A handler's process may
not import `models`, which has the same rules for what a manifest declares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
AXIS_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
TEXT = re.compile(
    r"([a-z0-9]+)\[([^\[\]]*)\]"
    rf"(?: +in +(-?[0-9]{{1,19}})?\.\.(?:(-?[0-9]{{1,19}})|<({AXIS_NAME}))?)?"
)
SIZE = re.compile(
    rf" *(?:([1-9][0-9]{{0,8}})|(?:([0-9]{{1,9}})<=)?(-1|{AXIS_NAME})(?:<=([1-9][0-9]{{0,8}}))?) *"
)
BYTES = "bytes"  # texts, or other bytes of any length
DTYPES = frozenset(
    ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", BYTES)
)
MAX_SIZE = 2**31 - 1  # of an axis without a largest size
BITS = re.compile(r"(u?)int([0-9]+)")


class Axis(NamedTuple):
    """An axis of an item: its name if it has one, and its smallest and largest size."""

    name: str | None
    least: int
    most: int

    def __str__(self) -> str:
        if self.name is None and self.least == self.most:
            return str(self.most)
        least = f"{self.least}<=" if self.least else ""
        return f"{least}{self.name or -1}" + f"<={self.most}" * (self.most < MAX_SIZE)


class Tensor(NamedTuple):
    """A declared tensor.

    Attributes:
        axes: of an item. Axis 0 of the tensor is before them: it counts the items.
        least: the smallest of its integers; None: any.
        most: the largest; None: any.
        below: the name of an axis whose size in the item is more than each integer; None: none.
    """

    dtype: str
    axes: tuple[Axis, ...] = ()
    least: int | None = None
    most: int | None = None
    below: str | None = None

    def __str__(self) -> str:
        sizes = ",".join(map(str, (-1, *self.axes)))
        low, high = ("" if each is None else each for each in (self.least, self.most))
        end = high if self.below is None else f"<{self.below}"
        return f"{self.dtype}[{sizes}]" + f" in {low}..{end}" * (f"{low}{end}" != "")


def read_tensors(texts: Mapping[str, str], what: str) -> dict[str, Tensor]:
    """Read `inputs` or `outputs` of a class.

    Args:
        texts: by name.
        what: that is read, for messages.

    Raises:
        ValueError: if they are wrong.
    """
    if not isinstance(texts, Mapping):
        raise ValueError(f'{what} must be a dict such as {{"x": "float32[-1,4]"}}')
    tensors = {name: _tensor(name, text, what) for name, text in texts.items()}
    named = _named_axes(tensors, what)
    for name, tensor in tensors.items():
        if tensor.below is not None and tensor.below not in named:
            raise ValueError(f"{what}[{name!r}]: no size has the name {tensor.below!r}")
        axes = (axis if axis.name is None else named[axis.name] for axis in tensor.axes)
        tensors[name] = tensor._replace(axes=tuple(axes))
    return tensors


def _tensor(name: object, text: object, what: str) -> Tensor:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"{what} has the name {name!r:.80}; use letters, digits, - and _, 64 at most"
        )
    what = f"{what}[{name!r}]"
    parts = TEXT.fullmatch(text) if isinstance(text, str) else None
    first, *others = parts[2].split(",") if parts is not None else ("",)
    sizes = [SIZE.fullmatch(each) for each in others]
    if parts is None or parts[1] not in DTYPES or first.strip() != "-1" or not all(sizes):
        raise ValueError(
            f"{what} is {text!r:.80}; write a dtype and sizes, such as 'float32[-1,4]': the first "
            "one counts the items and is -1; others are numbers, -1 if any size fits, or 1<=n<=512 "
            "within these bounds, with one size for n. Integers may have a range, as in "
            f"'int64[-1,4] in 0..9'. The dtypes are {', '.join(sorted(DTYPES))}"
        )
    axes = tuple(_axis(each, what) for each in sizes if each is not None)
    if parts[1] == BYTES and any(axis.least < axis.most or axis.name for axis in axes):
        raise ValueError(f"{what} is {text!r:.80}; only the first size of bytes can be -1")
    least, most = (None if each is None else int(each) for each in parts.group(3, 4))
    tensor = Tensor(parts[1], axes, least, most, parts[5])
    _check_range(tensor, what)
    return tensor


def _axis(size: re.Match[str], what: str) -> Axis:
    if size[1]:
        return Axis(None, int(size[1]), int(size[1]))
    axis = Axis(None if size[3] == "-1" else size[3], int(size[2] or 0), int(size[4] or MAX_SIZE))
    if axis.least > axis.most:
        raise ValueError(f"{what}: no size is in {axis}")
    return axis


def _check_range(tensor: Tensor, what: str) -> None:
    if (tensor.least, tensor.most, tensor.below) == (None, None, None):
        return
    bits = BITS.fullmatch(tensor.dtype)
    if bits is None:
        raise ValueError(f"{what}: only integers have a range, not {tensor.dtype}")
    span = 2 ** int(bits[2])
    low = 0 if bits[1] else -span // 2
    high = low + span - 1
    least, most = (low if tensor.least is None else tensor.least), tensor.most
    if not low <= least <= (high if most is None else most) <= high:
        raise ValueError(
            f"{what}: the range of {tensor} is empty, or outside of {tensor.dtype}, which is "
            f"{low}..{high}"
        )


def _named_axes(tensors: Mapping[str, Tensor], what: str) -> dict[str, Axis]:
    """The axes with a name; bounds that are given in one place are those of all.

    Raises:
        ValueError: if a name has two different bounds.
    """
    named: dict[str, Axis] = {}
    for axis in (each for tensor in tensors.values() for each in tensor.axes):
        if axis.name is not None:
            both = {named.get(axis.name, axis), axis} - {Axis(axis.name, 0, MAX_SIZE)}
            if len(both) > 1:
                bounds = " and ".join(map(str, sorted(both)))
                raise ValueError(f"{what}: one name has one size, got {bounds}")
            named[axis.name] = both.pop() if both else axis
    return named
