"""The tensors of a handler that declares its inputs and outputs, on their way to it and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from app.codecs.answers import npy_file
from app.codecs.elements import elements_of
from app.codecs.npz import check_counts, npz_parts, read_npz
from app.codecs.shared_sizes import SharedSizes
from app.codecs.tensor import most_lists, most_marks
from app.codecs.values import check_values
from app.errors import HandlerOutputs, InvalidInput, PayloadTooLarge
from app.types import Array, Arrays
from models.tensors import TensorSpec
from torchlane.handlers.elements import MAX_ELEMENTS


class Unpacked(NamedTuple):
    """An output of an answer, with all items.

    Attributes:
        array: of its shape; of bytes the octets, see `app.codecs.elements`.
    """

    shape: tuple[int, ...]
    array: Array


class DeclaredTensors:
    """What a handler declares; see `Marks` for more attributes.

    Attributes:
        inputs: in order; axis 0 counts items.
        outputs: those of its answers.
        item_elements: of all inputs that are bytes, in one item.
        shared_sizes: of the inputs.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.most_marks = sum(map(most_marks, self.inputs))
        self.most_lists = sum(map(most_lists, self.inputs))
        self.takes_nan = False
        texts = [spec for spec in self.inputs if spec.dtype == "bytes"]
        self.item_elements = sum(math.prod(spec.item_shape) for spec in texts)
        self.shared_sizes = SharedSizes(self.inputs)
        self._shared_outputs = SharedSizes(self.outputs)
        self._files = tuple(map(_file_spec, self.outputs))

    def most_elements(self, items: int) -> int:
        """How many elements of bytes a request with this many items may have."""
        return min(self.item_elements * items, MAX_ELEMENTS)

    def packed(self, arrays: Arrays) -> bytes:
        """The body of a request, an .npz file.

        Args:
            arrays: of the inputs; of bytes the octets, see `app.codecs.elements`.
        """
        files = (npy_file(name, [array], many=False) for name, array in arrays.items())
        return b"".join(npz_parts(files))

    def unpacked(self, body: bytes) -> dict[str, Unpacked]:
        """The outputs of an answer, which is not trusted: its process has checked them already.

        Raises:
            HandlerOutputs: it has others, or numbers that are not finite or out of their range.
        """
        try:
            arrays = read_npz(self._files, body, many=True, budget=None, may_be_empty=True)
            tensors = {spec.name: _unpacked(spec, arrays[spec.name]) for spec in self.outputs}
            check_counts({name: each.shape for name, each in tensors.items()})
            for spec in self.outputs:
                check_values(spec, arrays[spec.name])
            self._shared_outputs.check(arrays, batch_axes=1, indexed=False)
        except (InvalidInput, PayloadTooLarge) as error:
            raise HandlerOutputs(f"the handler's outputs: {error}") from error
        return tensors


def _file_spec(spec: TensorSpec) -> TensorSpec:
    """A tensor in a file: bytes are their octets."""
    if spec.dtype != "bytes":
        return spec
    return TensorSpec(name=spec.name, dtype="uint8", shape=(-1,))


def _unpacked(spec: TensorSpec, array: Array) -> Unpacked:
    if spec.dtype != "bytes":
        return Unpacked(array.shape, array)
    most = MAX_ELEMENTS + 1
    count = sum(1 for _ in islice(elements_of(repr(spec.name), array.data), most))
    if count == most:
        raise InvalidInput(f"{spec.name!r}: more than {MAX_ELEMENTS} elements")
    of_item = math.prod(spec.item_shape)
    if count % of_item:
        raise InvalidInput(
            f"{spec.name!r}: {count} elements do not fill whole items of {of_item} elements"
        )
    return Unpacked((count // of_item, *spec.item_shape), array)
