"""What concerns several tensors of an item: equal sizes, and numbers below a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.codecs.values import check_below
from app.errors import InvalidInput
from app.types import Arrays
from models.bounds import InputAxis, below, mismatch, shared_axes
from models.tensors import TensorSpec


class SharedSizes:
    """Checks the inputs of one model, or the tensors of a handler.

    Args:
        specs: all of them.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        places = below(specs)
        self._shared = shared_axes(specs)
        self._below = [(spec, places[spec.name]) for spec in specs if spec.name in places]

    def check(self, arrays: Arrays, batch_axes: int = 0, *, indexed: bool = True) -> None:
        """Check arrays that have their shapes and dtypes.

        Args:
            arrays: of one item; or with a batch axis, of several, which have the same shapes.
            batch_axes: 1 for several items.
            indexed: whether the error of one of several items has its index.

        Raises:
            InvalidInput: with the numbers.
        """
        if self._shared:
            shapes = {name: array.shape[batch_axes:] for name, array in arrays.items()}
            check_equal(self._shared, shapes)
        for spec, place in self._below:
            size = arrays[place.input].shape[place.axis + batch_axes]
            check_below(spec, arrays[spec.name], size, many=indexed and batch_axes == 1)


def check_equal(
    shared: Mapping[str, Sequence[InputAxis]], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Reject an item that has two sizes for one name; see `models.bounds.mismatch`.

    Raises:
        InvalidInput: with both sizes.
    """
    differ = mismatch(shared, shapes)
    if differ is not None:
        name, sizes = differ.second.input, {"got": differ.other_size, "limit": differ.size}
        raise InvalidInput(f"{name!r}: {differ}", [{"input": name, **sizes}])
