"""Items as tensors: nested or flat numbers in JSON, raw little-endian bytes, or .npy files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import numpy as np

from app.codecs.answers import AnswerEncoder
from app.codecs.base import NPY, NPZ, OCTET_STREAM, Budget, Files, at_index, check_count
from app.codecs.categories import CategoryIndex
from app.codecs.item_schema import JsonSchema, number_schema, tensor_item
from app.codecs.missing import one_nan
from app.codecs.npy import read_npy
from app.codecs.npz import check_counts, read_npz
from app.codecs.numbers import NATIVE_READER, NumberReader, rows
from app.codecs.places import Places
from app.codecs.shared_sizes import SharedSizes
from app.codecs.values import check_values, convert, misshapen, not_all, short, wanted
from app.errors import InvalidInput, UnsupportedMediaType
from app.types import Array, Arrays, Item, Signature
from models.categories import by_input, optional_inputs
from models.codec_specs import categories_of
from models.manifest import Manifest
from models.padding import padding_of
from models.tensors import Axis, TensorSpec, null_as_nan

MAX_SHOWN = 8  # names from a client in an error
MAX_AXES = 64  # numpy rejects lists that are nested deeper


class TensorCodec:
    """See `app.codecs.base.Codec`.

    Args:
        manifest: has the inputs' names, dtypes, shapes and bounds.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.media_types: tuple[str, ...] = (NPZ,)
        self._inputs = manifest.inputs
        self._item_shapes = [spec.item_shape for spec in self._inputs]  # free axes fit no array
        self._shared_sizes = SharedSizes(manifest.inputs)
        self._missing = frozenset(spec.name for spec in self._inputs if spec.nan)
        categories = categories_of(manifest.codec)
        self.optional = optional_inputs(self._inputs, categories)
        self._categories = {
            spec.name: CategoryIndex(spec, by_input(categories)[spec.name])
            for spec in self._inputs
            if spec.name in by_input(categories)
        }
        self.takes_nan = bool(self._missing)
        self.most_marks = sum(map(most_marks, self._inputs))
        self.most_lists = sum(map(most_lists, self._inputs))
        self._reader: NumberReader | None = None
        self._padding = padding_of(manifest.inputs, manifest.outputs)
        self._mask = None if self._padding is None else self._padding.dimension.mask
        self._signature: Signature | None = (
            None  # shared by all items if each free axis may be padded
        )
        axes = [(s.item_shape[at], axis) for s in self._inputs for at, axis in enumerate(s.axes)]
        if all(size != -1 or self._pads(axis) for size, axis in axes):
            self._signature = tuple(
                (spec.name, np.dtype(spec.dtype).str, spec.item_shape) for spec in self._inputs
            )
        answers = AnswerEncoder(manifest)
        self.item_types = answers.item_types
        self.batch_types = answers.batch_types
        self.finish = answers.finish
        self.check_top_k = answers.check_top_k
        self.check_pictures = answers.check_pictures
        self.encode = answers.encode
        self.encode_raw = answers.encode_raw
        self.chosen = answers.chosen
        self.places: Places | None = None
        self.files: Files | None = None
        self.parts: tuple[str, ...] = ()
        if len(self._inputs) == 1:
            (spec,) = self._inputs
            self.media_types = (NPY, NPZ)
            if NATIVE_READER is not None and NumberReader.can_read(spec):
                self._reader = NumberReader(spec, NATIVE_READER)
                self._signature = self._reader.signature  # one tuple, compared by identity
            self._is_fixed = spec.is_fixed
            if spec.is_fixed:
                self.media_types = (OCTET_STREAM, NPY, NPZ)
                self._item_bytes = spec.item_bytes
                self._little_endian = np.dtype(spec.dtype).newbyteorder("<")

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        """Numbers of one fixed shape, nested or flat, for a model with one input."""
        return self._reader.items(key, body, max_items) if self._reader else None

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """Numbers for a model with one input, otherwise an object by input name."""
        if budget is not None:
            budget.numbers(len(self._inputs))
        if len(self._inputs) == 1:
            spec = self._inputs[0]
            if isinstance(value, Mapping):
                if set(value) == {spec.name}:
                    value = value[spec.name]
                elif not value and self.optional:
                    value = None
                else:
                    got = f"an object with {listed(list(value))}"
                    raise InvalidInput(f"{spec.name!r}: expected {wanted(spec)}, got {got}")
            if self._categories:
                value = self._categories[spec.name].indices(value)
            arrays = {spec.name: numbers_of(spec, value, flat=self._is_fixed)}
            self.check_together(arrays)
            return self.item(arrays)
        names = [spec.name for spec in self._inputs]
        if not isinstance(value, Mapping):
            raise InvalidInput(f"expected an object with {listed(names)}, got {kind(value)}")
        if set(value) != set(names):
            value = self._with_missing(value, names)
        if self._categories:
            value = dict(value)
            for name, categories in self._categories.items():
                value[name] = categories.indices(value[name])
        arrays = {s.name: numbers_of(s, value[s.name], flat=False) for s in self._inputs}
        self.check_together(arrays)
        return self.item(arrays)

    def _with_missing(self, value: Mapping[str, object], names: list[str]) -> Mapping[str, object]:
        """An item with null for each scalar that may be missing and is.

        Raises:
            InvalidInput: if another input is missing, or there is none of a name.
        """
        whole = {name: value.get(name) for name in names if name in value or name in self.optional}
        if len(whole) < len(names) or not set(value) <= set(names):
            may = f" ({listed(sorted(self.optional))} may be missing)" if self.optional else ""
            got = listed(list(value))
            raise InvalidInput(f"expected exactly {listed(names)}{may}, got {got}")
        return whole

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """Items from their bytes, or from the arrays of an .npy or .npz file."""
        check_media_type(media_type, self.media_types)
        if media_type == NPZ:
            return self._of_npz(body, max_items, budget)
        spec, many = self._inputs[0], max_items is not None
        stacked = read_npy(spec, body, many=many) if media_type == NPY else self._octets(body, many)
        if max_items is not None:
            check_count(len(stacked), max_items)
        array = stacked if many else stacked[0]
        check_values(spec, array, many=many)
        self.check_together({spec.name: array}, batch_axes=int(many))
        return self._items(one_nan(stacked) if self._missing else stacked)

    def _of_npz(self, body: bytes, max_items: int | None, budget: Budget | None) -> list[Item]:
        many = max_items is not None
        arrays = read_npz(self._inputs, body, many=many, budget=budget)
        check_counts({name: array.shape for name, array in arrays.items()})
        if max_items is not None:
            check_count(len(next(iter(arrays.values()))), max_items)
            return self.decode_arrays(arrays)
        item = {name: array[0, ...] for name, array in arrays.items()}
        for spec in self._inputs:
            check_values(spec, item[spec.name])
        self.check_together(item)
        return [self.item(self._with_one_nan(item) if self._missing else item)]

    def decode_arrays(self, arrays: Arrays) -> list[Item]:
        """Rows of the arrays."""
        for spec, item_shape in zip(self._inputs, self._item_shapes, strict=True):
            array = arrays[spec.name]
            shape = array.shape[1:]
            if shape != item_shape and not spec.takes(shape):
                raise misshapen(spec, shape)
            check_values(spec, array, many=True)
        self.check_together(arrays, batch_axes=1)
        if self._missing:
            arrays = self._with_one_nan(arrays)
        if len(self._inputs) == 1:
            return self._items(arrays[self._inputs[0].name])
        count = len(arrays[self._inputs[0].name])
        return [
            self.item({name: array[index, ...] for name, array in arrays.items()})
            for index in range(count)
        ]

    def item_schema(self) -> JsonSchema:
        specs = {spec.name: spec for spec in self._inputs}
        values = {
            name: each.schema(number_schema(specs[name])) for name, each in self._categories.items()
        }
        return tensor_item(self._inputs, values, self.optional)

    def item(self, arrays: Arrays) -> Item:
        """The item of arrays that match the inputs."""
        if self._padding is None:
            return Item(arrays, self._signature)
        signature = self._signature
        if signature is None:  # another free axis is never padded
            signature = tuple(
                (spec.name, arrays[spec.name].dtype.str, self._unpadded(spec, arrays[spec.name]))
                for spec in self._inputs
            )
        return Item(arrays, signature, self._padding.size(arrays))

    def check_together(self, arrays: Arrays, batch_axes: int = 0) -> None:
        """Check what concerns several inputs: equal sizes, and numbers below a size.

        Args:
            arrays: of one item; or with a batch axis, of several, which have the same shapes.
            batch_axes: 1 for several items.
        """
        self._shared_sizes.check(arrays, batch_axes)
        if self._mask is not None:
            self._check_mask(arrays[self._mask], many=batch_axes == 1)

    def _check_mask(self, mask: Array, *, many: bool) -> None:
        """Check that every item has data: the mean of none is NaN."""
        rows = mask.reshape(len(mask) if many else 1, -1)
        is_used = rows.any(axis=1)
        if not is_used.all():
            error = InvalidInput(f"{self._mask!r}: expected 1 in at least one place, got only 0")
            raise at_index(int(is_used.argmin()), error) if many else error

    def _with_one_nan(self, arrays: Arrays) -> Arrays:
        return {
            name: one_nan(array) if name in self._missing else array
            for name, array in arrays.items()
        }

    def has_whole_items(self, body: bytes, *, many: bool) -> bool:
        """Whether octets have the size of an item of a fixed shape, or of one or more if `many`."""
        size = self._item_bytes
        return len(body) == size if not many else len(body) > 0 and len(body) % size == 0

    def _octets(self, body: bytes, many: bool) -> Array:
        spec, size = self._inputs[0], self._item_bytes
        if not self.has_whole_items(body, many=many):
            count = f"a whole multiple of {size}" if many else f"{size}"
            raise InvalidInput(
                f"{spec.name!r}: expected {count} bytes (little-endian {wanted(spec)}), "
                f"got {len(body)}"
            )
        flat = np.frombuffer(body, self._little_endian)
        if not self._little_endian.isnative:
            flat = flat.astype(self._little_endian.newbyteorder("="))
        return flat.reshape(-1, *spec.item_shape)

    def _items(self, stacked: Array) -> list[Item]:
        name = self._inputs[0].name
        if self._padding is None and self._signature is not None:
            return rows(name, stacked, self._signature)
        return [self.item({name: stacked[index, ...]}) for index in range(len(stacked))]

    def _pads(self, axis: Axis) -> bool:
        return self._padding is not None and axis.name == self._padding.dimension.name

    def _unpadded(self, spec: TensorSpec, array: Array) -> tuple[int, ...]:
        """The shape of an array, -1 where it may be padded."""
        sizes = zip(spec.axes, array.shape, strict=True)
        return tuple(-1 if self._pads(axis) else size for axis, size in sizes)


def most_marks(spec: TensorSpec) -> int:
    """Marks of one item: a comma after each number, list and name; a bracket for each list."""
    return math.prod(_most_sizes(spec)) + 2 * most_lists(spec) + 4


def most_lists(spec: TensorSpec) -> int:
    """Lists of one item: the list of the first axis, its lists of the second axis, and so on."""
    sizes = _most_sizes(spec)
    return sum(math.prod(sizes[:depth]) for depth in range(len(sizes)))


def _most_sizes(spec: TensorSpec) -> list[int]:
    return [axis.most for axis in spec.axes]


def check_media_type(media_type: str, raw: tuple[str, ...]) -> None:
    """Reject a media type that a codec does not read.

    Raises:
        UnsupportedMediaType: with the media types that it reads.
    """
    if media_type not in raw:
        takes = ", ".join(("application/json", *raw))
        raise UnsupportedMediaType(f"this model accepts {takes}, not {short(media_type)}")


def convert_numbers(spec: TensorSpec, numbers: list[object]) -> Array:
    """Numbers of JSON, nested or flat, as an array of an input's dtype, whose shape is not checked.

    Raises:
        InvalidInput: with what was expected and what was sent.
    """
    return convert(spec, _array(spec, numbers))


def numbers_of(spec: TensorSpec, value: object, *, flat: bool) -> Array:
    """Convert a JSON value to one item of an input."""
    array = _array(spec, value)
    if array.size == 0 and array.dtype == np.float64:  # an empty list has no type of its own
        array = array.astype(spec.dtype)
        if not spec.is_fixed:  # shapes [0], [0, 2] and [0, 0, 7] are all written as an empty list
            inner = tuple(max(0, size) for size in spec.item_shape[array.ndim :])
            array = array.reshape(array.shape + inner)
    if flat and array.ndim == 1 and array.size == math.prod(spec.item_shape):
        array = array.reshape(spec.item_shape)
    if not spec.takes(array.shape):
        raise misshapen(spec, array.shape)
    converted = convert(spec, array)
    if spec.dtype != "bool":  # converted bools are 0 or 1
        check_values(spec, converted)
    return converted


def _array(spec: TensorSpec, value: object) -> Array:
    """A JSON value as an array of its own dtype."""
    if not isinstance(value, list | int | float) and (
        value is not None or not spec.nan or spec.item_shape
    ):
        raise InvalidInput(f"{spec.name!r}: expected {wanted(spec)}, got {kind(value)}")
    kinds = _kinds(value) if isinstance(value, list) else ()
    # numpy turns bools among numbers into numbers, and all values into texts of the longest one.
    if str in kinds or (bool in kinds and spec.dtype != "bool"):
        raise not_all(spec)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:  # numpy: inhomogeneous shape
        raise InvalidInput(
            f"{spec.name!r}: expected {wanted(spec)}, got ragged nesting: lists at the same depth "
            "must have the same length"
        ) from error
    return null_as_nan(array) if spec.nan else array


def _kinds(values: list[object]) -> set[type]:
    """The types of JSON values and of those in their lists, as deep as numpy reads them."""
    kinds, lists = set[type](), [values]
    for _ in range(MAX_AXES):
        found = set(map(type, chain.from_iterable(lists)))
        kinds |= found
        if list not in found:
            break
        lists = [each for outer in lists for each in outer if isinstance(each, list)]
    return kinds


def kind(value: object) -> str:
    """The kind of a JSON value, for messages."""
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else "a list")


def listed(names: list[str]) -> str:
    """Names for messages, of which only some are shown."""
    shown = [short(name) for name in names[:MAX_SHOWN]]
    return ", ".join(shown + ["..."] * (len(names) > MAX_SHOWN)) or "nothing"
