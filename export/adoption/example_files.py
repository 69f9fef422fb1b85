"""Reads real items from files, one by one: pictures, sounds, arrays, Parquet, texts."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from pydantic import JsonValue

from export.errors import UsageError
from export.options.adoption import EXAMPLE_FORMATS
from export.reading.text_files import lines_of, read_text
from models.bounds import at_sizes, mismatch, out_of_range, shared_axes
from models.codec_specs import AudioCodecSpec, CodecSpec, ImageCodecSpec, TextCodecSpec
from models.inputs.audio import decode_sound, item_of, open_sound
from models.inputs.pictures import PictureError
from models.inputs.preprocess import preprocess
from models.inputs.tokenize import TextError, Tokenizer
from models.padding import padding_of
from models.system.extras import NotInstalled, import_package
from models.tensors import Array, Arrays, TensorSpec, null_as_nan

FILES = {"image": (".png", ".jpg", ".jpeg", ".webp", ".gif"), "audio": (".wav", ".flac")}
LABELS, LABEL, TEXT, SECOND = "labels", "label", "text", "second"
MAX_FILE_BYTES = 4 << 30  # of texts and tables, which are read whole
MAX_DISPLAY = 4096  # characters of a text; a longer one is not shown to people

Reader: TypeAlias = Callable[[Path, "InputContract"], "ItemSource"]


@dataclass(frozen=True, slots=True)
class InputContract:
    """What a model takes.

    Attributes:
        tokenizer: the file; None: it takes no texts.
    """

    inputs: tuple[TensorSpec, ...]
    codec: CodecSpec
    tokenizer: bytes | None = None


@dataclass(frozen=True, slots=True)
class ItemSource:
    """The items of a file or a folder.

    Attributes:
        item: reads one: input name -> array without the batch axis, not yet checked.
        name: of an item, for messages.
        labels: of all items, as they are written; None: there are none.
        display: a text, or two, as a client sends it in JSON; None: other items, long texts.
    """

    count: int
    item: Callable[[int], Arrays]
    name: Callable[[int], str]
    labels: Sequence[object] | None = None
    display: Callable[[int], JsonValue] = lambda _: None


def find(path: Path, contract: InputContract) -> ItemSource:
    """Open a file, or a folder of pictures or sounds, in the format of its name.

    Raises:
        UsageError: if it cannot be read, has no items, or does not fit the model.
    """
    try:
        kind = "folder" if path.is_dir() else path.suffix.lower()
        if kind != "folder" and path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"--examples {path}: more than {MAX_FILE_BYTES:,} bytes; give a part")
        if kind not in READERS:
            raise UsageError(f"--examples {path}: must be {EXAMPLE_FORMATS}")
        source = READERS[kind](path, contract)
    except OSError as error:
        raise UsageError(f"--examples {path}: {error.strerror or error}") from error
    if not source.count:
        raise UsageError(f"--examples {path} is empty: give some real inputs")
    return source


def read(source: ItemSource, index: int, inputs: Sequence[TensorSpec]) -> Arrays:
    """Read an item in the dtypes of the inputs, and in their order, without padding at its end.

    Raises:
        UsageError: if it cannot be read, or the model does not take it.
    """
    name = source.name(index)
    try:
        arrays = source.item(index)
        item = {spec.name: _fitting(spec, arrays[spec.name]) for spec in inputs}
    except OSError as error:
        raise UsageError(f"--examples {name}: {error.strerror or error}") from error
    except (PictureError, TextError, NotInstalled, ValueError, TypeError, LookupError) as error:
        raise UsageError(f"--examples {name}: {error}") from error
    check_limits(name, item, inputs)
    padding = padding_of(inputs, inputs)
    if padding is None:
        return item
    data = np.flatnonzero(item[str(padding.dimension.mask)])
    return padding.trim(item, int(data[-1]) + 1) if data.size else item


def check_limits(name: str, item: Arrays, inputs: Sequence[TensorSpec]) -> None:
    """Check sizes and numbers of an item.

    Raises:
        UsageError: at the first that the inputs do not allow.
    """
    shapes = {name: array.shape for name, array in item.items()}
    for spec in inputs:
        if not spec.takes(shapes[spec.name]):
            raise UsageError(
                f"--examples {name}: {spec.name!r} has shape {list(shapes[spec.name])}, and the "
                f"model takes {spec}"
            )
    differ = mismatch(shared_axes(inputs), shapes)
    if differ is not None:
        raise UsageError(f"--examples {name}: {differ.second.input!r}: {differ}")
    for spec in at_sizes(inputs, shapes):
        if (number := out_of_range(spec, item[spec.name])) is not None:
            raise UsageError(f"--examples {name}: {number} is not a number that {spec} takes")


def _fitting(spec: TensorSpec, value: Any) -> Array:
    array = null_as_nan(np.asarray(value)) if spec.nan else np.asarray(value)
    kinds = [
        {"u": "i"}.get(dtype.kind, dtype.kind) for dtype in (array.dtype, np.dtype(spec.dtype))
    ]
    if kinds[0] != kinds[1] or not spec.accepts(array.shape):
        takes = f"{spec.name}={spec.dtype}{list(spec.shape)}".replace(" ", "")
        raise ValueError(
            f"the item is {array.dtype}{list(array.shape)}, and the model takes {takes}"
        )
    with np.errstate(over="ignore"):
        result = array.astype(spec.dtype)
    if kinds[1] == "f" and np.isinf(result).any():
        raise ValueError(f"{spec.name!r} has infinite numbers")
    if kinds[1] == "f" and not spec.nan and np.isnan(result).any():
        raise ValueError(
            f"{spec.name!r} has NaN; if numbers may be missing, say so: --input '{spec} or nan'"
        )
    if kinds[1] == "i" and not np.array_equal(result, array):
        raise ValueError(f"{spec.name!r} has numbers outside of {spec.dtype}")
    return result


def _of_file(data: bytes, contract: InputContract) -> Arrays:
    """Return the item of a picture or a sound."""
    if isinstance(contract.codec, ImageCodecSpec):
        name = contract.codec.input_of(contract.inputs).name
        return {name: preprocess(data, contract.codec.preprocess)}
    if not isinstance(contract.codec, AudioCodecSpec):
        raise TypeError("the model takes neither pictures nor sounds")
    axis = contract.inputs[0].axes[-1]
    samples = decode_sound(open_sound(data, contract.codec, axis), contract.codec)
    return item_of(samples, contract.inputs)


def _folder(folder: Path, contract: InputContract) -> ItemSource:
    if contract.codec.kind not in FILES:
        raise UsageError(
            f"--examples {folder} is a folder, for models that take pictures or sounds: add "
            "--codec image or audio, or give a file of numbers or texts"
        )
    if isinstance(contract.codec, ImageCodecSpec) and contract.codec.input is not None:
        raise UsageError(
            f"--examples {folder} is a folder, but the model takes more than a picture: give "
            "Parquet with a column for each input, the picture's file in one of them"
        )
    suffixes = FILES[contract.codec.kind]
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in suffixes
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    parts = [file.relative_to(folder).parts for file in files]
    inside = {len(each) > 1 for each in parts}
    if len(inside) > 1:
        raise UsageError(
            f"--examples {folder} has files next to folders with files: put each into the folder "
            "of its label, or all into one"
        )

    def item(index: int) -> Arrays:
        return _of_file(files[index].read_bytes(), contract)

    labels = [each[0] for each in parts] if inside == {True} else None
    return ItemSource(len(files), item, lambda index: str(files[index]), labels)


def _array(file: Path, contract: InputContract) -> ItemSource:
    names = [spec.name for spec in contract.inputs]
    if len(names) > 1:
        raise UsageError(
            f"--examples {file} has one array, but the model has the inputs {', '.join(names)}: "
            "give .npz or Parquet"
        )
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (ValueError, EOFError) as error:
        raise UsageError(f"--examples {file} cannot be read as .npy: {error}") from error
    return _of_arrays(file, {names[0]: array}, None, contract)


def _arrays(file: Path, contract: InputContract) -> ItemSource:
    try:
        with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_FILE_BYTES:
                raise UsageError(
                    f"--examples {file} would unpack to more than {MAX_FILE_BYTES:,} bytes; give "
                    "a part"
                )
            content = np.load(stream, allow_pickle=False)
            arrays = {name: content[name] for name in content.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"--examples {file} cannot be read as .npz: {error}") from error
    labels = arrays.pop(LABELS, None)
    _check_names(file, arrays, contract)
    return _of_arrays(file, arrays, labels, contract)


def _of_arrays(
    file: Path, arrays: Arrays, labels: Array | None, contract: InputContract
) -> ItemSource:
    shapes = {name: array.shape for name, array in arrays.items()}
    if all(spec.accepts(shapes[spec.name]) for spec in contract.inputs):
        raise UsageError(
            f"--examples {file} has one item; the first axis must be that of the items: stack at "
            "least two"
        )
    every = [*arrays.values(), *([] if labels is None else [labels])]
    counts = {len(array) if array.ndim else 0 for array in every}
    if len(counts) > 1:
        raise UsageError(f"--examples {file}: its arrays have {sorted(counts)} rows")
    return ItemSource(
        counts.pop(),
        lambda index: {name: array[index] for name, array in arrays.items()},
        lambda index: f"{file}, row {index}",
        None if labels is None else labels.tolist(),
    )


def _check_names(file: Path, columns: Mapping[str, object], contract: InputContract) -> None:
    names = [spec.name for spec in contract.inputs]
    if sorted(columns) != sorted(names):
        raise UsageError(
            f"--examples {file} has {', '.join(columns) or 'nothing'}, and the model takes "
            f"{', '.join(names)}"
        )


def _table(file: Path, contract: InputContract) -> ItemSource:
    try:
        parquet = import_package("pyarrow.parquet", "pyarrow", "bulk")
    except NotInstalled as error:
        raise UsageError(f"--examples {file}: {error}") from error
    import pyarrow  # noqa: PLC0415 - optional

    try:
        table = parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise UsageError(f"--examples {file} is not Parquet: {error}") from error
    columns = {name: table.column(name) for name in table.column_names if name != LABEL}
    labels = table.column(LABEL).to_pylist() if LABEL in table.column_names else None

    def row(index: int) -> Mapping[str, Any]:
        return {name: column[index].as_py() for name, column in columns.items()}

    return _of_rows(file, table.num_rows, columns, row, labels, contract)


def _of_rows(
    file: Path,
    count: int,
    columns: Mapping[str, object],
    row: Callable[[int], Mapping[str, Any]],
    labels: Sequence[object] | None,
    contract: InputContract,
) -> ItemSource:
    """Return rows of texts, of pictures or sounds as files, or of numbers, by the model's codec."""
    codec = contract.codec

    def name(index: int) -> str:
        return f"{file}, row {index}"

    if isinstance(codec, TextCodecSpec):
        keys = [TEXT, SECOND] if codec.pairs else [TEXT]
        if any(each not in columns for each in keys):
            raise UsageError(f"--examples {file} needs {' and '.join(map(repr, keys))}")
        make = _tokenizes(contract, codec)

        def texts(index: int) -> list[Any]:
            return [row(index)[each] for each in keys]

        def display(index: int) -> JsonValue:
            values = texts(index)
            short = sum(map(len, values)) <= MAX_DISPLAY
            return (values if codec.pairs else values[0]) if short else None

        return ItemSource(count, lambda at: make(*texts(at)), name, labels, display)
    _check_names(file, columns, contract)

    def item(index: int) -> Arrays:
        arrays: dict[str, Array] = {}
        for spec in contract.inputs:
            value = row(index)[spec.name]
            if isinstance(value, bytes) and codec.kind in FILES:
                arrays |= _of_file(value, contract)
                continue
            array = np.asarray(value)
            flat = array.ndim == 1 and len(spec.item_shape) > 1 and spec.is_fixed
            arrays[spec.name] = array.reshape(spec.item_shape) if flat else array
        return arrays

    return ItemSource(count, item, name, labels)


def _texts(file: Path, contract: InputContract) -> ItemSource:
    rows = []
    for number, line in enumerate(lines_of(read_text("--examples", file, MAX_FILE_BYTES)), start=1):
        if not line.strip():
            raise UsageError(f"--examples {file}, line {number} is empty: remove it")
        rows.append({TEXT: line})
    return _of_texts(file, rows, contract)


def _objects(file: Path, contract: InputContract) -> ItemSource:
    rows = []
    for number, line in enumerate(lines_of(read_text("--examples", file, MAX_FILE_BYTES)), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--examples {file}, line {number}: not JSON: {error}") from error
        rows.append(row if isinstance(row, dict) else {TEXT: row})
    return _of_texts(file, rows, contract)


def _of_texts(file: Path, rows: Sequence[Mapping[str, Any]], contract: InputContract) -> ItemSource:
    if not isinstance(contract.codec, TextCodecSpec):
        raise UsageError(
            f"--examples {file} has texts, and the model takes none: give .npy, .npz or Parquet"
        )
    if not rows:
        return ItemSource(0, lambda _: {}, str)
    column = [row.get(LABEL) for row in rows]
    labels = None if column == [None] * len(rows) else column
    columns = dict.fromkeys(set.intersection(*(set(row) for row in rows)))
    return _of_rows(file, len(rows), columns, rows.__getitem__, labels, contract)


def _tokenizes(contract: InputContract, codec: TextCodecSpec) -> Callable[..., Arrays]:
    if contract.tokenizer is None:
        raise RuntimeError("a bug in adopt: a model that takes texts has no tokenizer")
    tokenizer = Tokenizer(contract.tokenizer, codec)

    def make(*texts: object) -> Arrays:
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a text is needed, got {type(text).__name__}")
        return tokenizer.arrays(tokenizer.tokens(*texts))  # type: ignore[arg-type]

    return make


READERS: Mapping[str, Reader] = {
    "folder": _folder,
    ".npy": _array,
    ".npz": _arrays,
    ".parquet": _table,
    ".txt": _texts,
    ".jsonl": _objects,
}
