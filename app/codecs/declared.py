"""The tensors of a handler that declares its inputs and outputs, on their way to it and back."""

from __future__ import annotations

from collections.abc import Sequence

from app.codecs.answers import npy_file
from app.codecs.npz import npz_parts, read_npz
from app.codecs.numbers import is_finite
from app.codecs.tensor import most_lists, most_marks
from app.errors import HandlerOutputs, InvalidInput, PayloadTooLarge
from app.types import Arrays
from models.tensors import TensorSpec


class DeclaredTensors:
    """What a handler declares; see `Marks` for more attributes.

    Attributes:
        inputs: in order; axis 0 counts items.
        outputs: those of its answers.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.most_marks = sum(map(most_marks, self.inputs))
        self.most_lists = sum(map(most_lists, self.inputs))
        self.takes_nan = False

    def packed(self, arrays: Arrays) -> bytes:
        """The body of a request, an .npz file.

        Args:
            arrays: of the inputs.
        """
        files = (npy_file(name, [array], many=False) for name, array in arrays.items())
        return b"".join(npz_parts(files))

    def unpacked(self, body: bytes) -> Arrays:
        """The outputs of an answer, which is not trusted: its process has checked them already.

        Raises:
            HandlerOutputs: it has others, or numbers that are not finite.
        """
        try:
            arrays = read_npz(self.outputs, body, many=True, budget=None, may_be_empty=True)
        except (InvalidInput, PayloadTooLarge) as error:
            raise HandlerOutputs(f"the handler's outputs: {error}") from error
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not is_finite(array):
                raise HandlerOutputs(f"the handler's output {name!r} has NaN or infinity")
        return arrays
