"""`adopt --calibrate`: real inputs for int8's ranges, for the proofs, and to measure accuracy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from export.adoption.calibration_files import FORMATS, Found, checked, find, lines_of
from export.errors import UsageError
from models.byte_order import NotUtf8Error
from models.codec_specs import TextCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.forms import input_tensors
from models.local_paths import local_path
from models.padding import padding_of
from models.tensors import Array, Arrays, stack, tiled, unstack

MAX_CALIBRATION = 512  # items for the ranges
MAX_ITEMS = 2048  # with those that measure accuracy
MAX_BYTES = 512 << 20  # of their arrays
READ_S = 60.0  # no item is read later
MEASURED_S = 20.0  # of eager, over all items that measure accuracy; each form takes as long
BATCH = 8
SEED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `calibrated` reads."""
    group = parser.add_argument_group("for int8")
    group.add_argument(
        "--calibrate",
        type=local_path,
        metavar="PATH",
        help=f"real inputs, of which int8 learns its ranges: {FORMATS}. Up to "
        f"{MAX_CALIBRATION} items, drawn from all; the golden examples in the artifact have values "
        "of some of them. With labels (a folder for each, `labels` in .npz, a column or key "
        f"`label`), up to {MAX_ITEMS} items: half of them, and at most {MAX_CALIBRATION}, "
        "calibrate, the others measure accuracy",
    )
    group.add_argument(
        "--calibrate-labels",
        type=local_path,
        metavar="FILE",
        help="the labels of --calibrate's items: one per line, in the order of rows or of the "
        "pictures' names; a label of the model, or its index",
    )


def calibrated(
    parsed: argparse.Namespace, definition: Definition, *, replace_samples: bool
) -> tuple[Definition, tuple[str, ...]]:
    """Add real inputs to a definition, if the command gives some.

    Args:
        parsed: from a parser with `add_arguments`.
        definition: of the model.
        replace_samples: whether proofs use values of the items instead of random numbers.

    Returns:
        the definition, and a sentence on what was read.

    Raises:
        UsageError: if they cannot be read, or do not fit the model.
    """
    path, file = parsed.calibrate, parsed.calibrate_labels
    if path is None:
        if file is not None:
            raise UsageError("--calibrate-labels is for the items of --calibrate, which is missing")
        return definition, ()
    found = find(path, definition)
    if file is not None:
        found = replace(found, labels=_lines(file))
    labels = _indices(found, definition, path if file is None else file)
    chosen, items = _read(found, definition)
    used = items if labels is None else items[: min(MAX_CALIBRATION, len(items) // 2)]
    made = replace(definition, calibration=lambda: _batches(used))
    if replace_samples:
        made = replace(
            made,
            random_inputs=lambda rng, batch: stack(
                _real(unstack(definition.random_inputs(rng, batch)), used, rng)
            ),
            golden_inputs=lambda: _real(
                definition.golden_inputs(), used, np.random.default_rng(SEED)
            ),
        )
    told = f"{len(used)} of {found.count:,} items of {path.name} for int8"
    if labels is not None:
        if not used:
            raise UsageError(f"--calibrate {path}: with labels, at least 2 items are needed")
        measured = _affordable(definition, items, len(used))
        right = labels[chosen[len(used) : measured]]
        inputs = _together(items[len(used) : measured], definition)
        made = replace(made, held_out=lambda: HeldOut(inputs, right))
        told += f", accuracy on {len(right)} others"
    return made, (told,)


def _read(found: Found, definition: Definition) -> tuple[Array, list[Arrays]]:
    """Read items drawn from all, within the limits: their indices, and the items."""
    most = MAX_CALIBRATION if found.labels is None else MAX_ITEMS
    chosen = np.random.default_rng(SEED).permutation(found.count)[:most]
    items: list[Arrays] = []
    size, ends_at = 0, time.monotonic() + READ_S
    for index in chosen.tolist():
        if size > MAX_BYTES or (len(items) > BATCH and time.monotonic() > ends_at):
            break
        items.append(checked(found, index, definition.inputs))
        size += sum(array.nbytes for array in items[-1].values())
    return chosen[: len(items)], items


def _affordable(definition: Definition, items: Sequence[Arrays], first: int) -> int:
    """Return up to which item accuracy is measured, by the time that eager takes for some."""
    batch = _batches(items[:BATCH])[0]
    module = definition.build()
    took_s = []
    for _ in range(2):  # the first is the warm-up
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                module(*input_tensors(batch, definition.inputs))
        except Exception:  # of any class; the proof runs it again, and reports it
            return len(items)
        took_s.append(time.perf_counter() - began)
    one_s = took_s[-1] / len(next(iter(batch.values())))
    return min(len(items), first + max(BATCH, int(MEASURED_S / max(one_s, 1e-9))))


def _shape(item: Arrays) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in item.values())


def _by_shape(items: Sequence[Arrays]) -> Mapping[object, list[Arrays]]:
    groups: dict[object, list[Arrays]] = {}
    for item in items:
        groups.setdefault(_shape(item), []).append(item)
    return groups


def _batches(items: Sequence[Arrays]) -> list[Arrays]:
    """Return batches of equal shapes."""
    return [
        stack(group[start : start + BATCH])
        for group in _by_shape(items).values()
        for start in range(0, len(group), BATCH)
    ]


def _real(
    made: Sequence[Arrays], items: Sequence[Arrays], rng: np.random.Generator
) -> list[Arrays]:
    """Return items of the same sizes, whose floating-point values are those of real items.

    Integers stay: they may be indices, whose range depends on the sizes.
    """
    order = rng.permutation(len(items))
    found: list[Arrays] = []
    for row, item in enumerate(made):
        real = items[order[row % len(items)]]
        shift = row // len(items)  # so that no two are equal
        found.append(
            {
                name: tiled(np.roll(real[name], shift), array.shape)
                if array.dtype.kind == "f"
                else array
                for name, array in item.items()
            }
        )
    return found


def _together(items: Sequence[Arrays], definition: Definition) -> Arrays:
    """Return all items as one batch, padded if the model allows it."""
    if len(_by_shape(items)) == 1:
        return stack(items)
    padding = padding_of(definition.inputs, definition.outputs)
    if padding is None:
        raise UsageError(
            "--calibrate: items with labels must have equal sizes, because the model has no "
            "padded dimension; leave out the labels, or declare one with --pad"
        )
    return padding.stack(items)


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in lines_of(file.read_bytes())]
    except OSError as error:
        raise UsageError(f"--calibrate-labels {file}: {error.strerror}") from error
    except (NotUtf8Error, UnicodeDecodeError) as error:
        raise UsageError(f"--calibrate-labels {file} is not UTF-8: {error}") from error


def _indices(found: Found, definition: Definition, where: Path) -> Array | None:
    """Return the index of each label in the first output.

    Raises:
        UsageError: if there is not one for each item, or the model does not have it.
    """
    if found.labels is None:
        return None
    shape = definition.outputs[0].item_shape
    if len(shape) != 1 or shape[0] < 2 or _is_embedding(definition):
        raise UsageError(
            f"{where} has labels, which need a first output with a score for each label, [-1, N]; "
            f"the model's is {list(definition.outputs[0].shape)}"
        )
    if len(found.labels) != found.count:
        raise UsageError(f"{where} has {len(found.labels):,} labels for {found.count:,} items")
    names = definition.codec.score_labels or ()
    known: dict[str, int] = {str(index): index for index in range(shape[0])}
    known |= {name: index for index, name in enumerate(names)}
    made = []
    for label in found.labels:
        index = known.get(str(label)) if isinstance(label, str | int) else None
        if index is None:
            told = f"one of {', '.join(names[:9])}, or " if names else ""
            raise UsageError(
                f"{where} has the label {label!r}, and the model has {shape[0]}: it must be {told}"
                f"an index, 0 to {shape[0] - 1}"
            )
        made.append(index)
    return np.array(made)


def _is_embedding(definition: Definition) -> bool:
    return isinstance(definition.codec, TextCodecSpec) and definition.codec.task == "embed"
