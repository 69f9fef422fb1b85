"""`adopt --examples`: real inputs for all proofs, for int8's ranges, and to measure accuracy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from export.adoption.example_files import (
    MAX_FILE_BYTES,
    InputContract,
    ItemSource,
    check_limits,
    find,
    read,
)
from export.errors import UsageError
from export.options.adoption import MAX_EXAMPLES, MAX_ITEMS
from export.probing.examples import Examples, Shapes, bytes_of, shapes_of
from export.probing.probing import Findings
from export.probing.samples import Samples
from export.reading.declared import change_axes, units_of
from export.reading.text_files import lines_of, read_text
from models.codec_specs import TextCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.padding import padding_of
from models.runtimes.forms import input_tensors
from models.tensors import FREE_MOST, Array, Arrays, TensorSpec, stack

MAX_BYTES = 512 << 20  # of their arrays
READ_S = 60.0  # no item is read later
MEASURED_S = 20.0  # of eager, over all items that measure accuracy; each form takes as long
BATCH = 8
SEED = 5
ONLY = "; free sizes are proved only as they are in these, because others that were tried fail"


@dataclass(frozen=True, slots=True)
class RealInputs:
    """What the command gives.

    Attributes:
        source: all items of the file or folder.
        where: what has the labels, for messages.
        indices: the index of each item that was read, in the order of `items`.
        items: different ones, drawn from all.
    """

    source: ItemSource
    where: Path
    indices: Array
    items: tuple[Arrays, ...]
    note: str

    @property
    def examples(self) -> Examples:
        """The items for proofs."""
        return Examples(self.items[:MAX_EXAMPLES], self.source.display(int(self.indices[0])))

    def check(self, inputs: Sequence[TensorSpec]) -> None:
        """Check that the inputs allow each item, once their limits are known.

        Raises:
            UsageError: at the first that does not fit.
        """
        for index, item in zip(self.indices.tolist(), self.items, strict=True):
            check_limits(self.source.name(index), item, inputs)


def read_examples(args: argparse.Namespace, contract: InputContract) -> RealInputs | None:
    """Read the real inputs that the command names; None: it names none.

    Raises:
        UsageError: if they cannot be read, do not fit the model, or are fewer than two.
    """
    path, file = args.examples, args.example_labels
    if path is None:
        if file is not None:
            raise UsageError("--example-labels is for the items of --examples, which is missing")
        return None
    source = find(path, contract)
    if file is not None:
        text = read_text("--example-labels", file, MAX_FILE_BYTES)
        source = replace(source, labels=[each.strip() for each in lines_of(text)])
    indices, items, repeats = _read(source, contract.inputs)
    if len(items) < 2:
        raise UsageError(
            f"--examples {path} has {len(items)} item"
            f"{', repeated' if repeats else ''}: at least two different ones are needed, because "
            "only they can show that an answer does not depend on the rest of a batch"
        )
    note = f"{len(items):,} of {source.count:,} items of {path.name}"
    note += f", without {repeats:,} repeated ones" if repeats else ""
    return RealInputs(source, path if file is None else file, indices, items, note)


def with_item_sizes(real_inputs: RealInputs, findings: Findings) -> Findings:
    """Let sizes without a known end be as large as those of the items, if these are very large."""
    inputs, notes = findings.inputs, list(findings.notes)
    for unit in units_of(inputs):
        number, axis = unit.places[0]
        name = inputs[number].name
        most = max(item[name].shape[axis] for item in real_inputs.items)
        if unit.most is None and most > FREE_MOST:
            inputs = change_axes(inputs, unit, name=unit.name, least=unit.least, most=most)
            notes.append(f"{unit.label} is at most {most:,}, as in --examples")
    return Findings(inputs, tuple(notes))


def with_samples(real_inputs: RealInputs, definition: Definition) -> Definition:
    """Replace samples of a definition by real inputs.

    Of texts, golden examples that are longer than them stay, and every second batch of proofs has
    tokens and lengths that the definition chooses.
    """
    examples = real_inputs.examples
    samples = Samples(definition.inputs, definition.codec, examples.shapes(), examples)
    result = replace(
        definition,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=samples.example,
    )
    if not isinstance(definition.codec, TextCodecSpec):
        return result
    longest = max(map(bytes_of, examples.items))

    def random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
        source = samples if rng.random() < 0.5 else definition
        return source.random_inputs(rng, batch)

    def golden_inputs() -> list[Arrays]:
        longer = [item for item in definition.golden_inputs() if bytes_of(item) > longest]
        return [*samples.golden_inputs(), *longer]

    is_shown = examples.display is not None
    return replace(
        result,
        random_inputs=random_inputs,
        golden_inputs=golden_inputs,
        example=samples.example if is_shown else definition.example,
    )


def with_calibration(
    real_inputs: RealInputs, definition: Definition, shapes: Sequence[Shapes] = ()
) -> Definition:
    """Add calibration data to a definition, and with labels a held-out set.

    Args:
        real_inputs: the items.
        definition: of the model.
        shapes: all that proofs use; empty: the definition chooses them.

    Raises:
        UsageError: if the labels do not fit the model.
    """
    items, note = real_inputs.items, real_inputs.note
    labels = _indices(real_inputs.source, definition, real_inputs.where)
    calibration_items = (
        items[:MAX_EXAMPLES] if labels is None else items[: min(MAX_EXAMPLES, len(items) // 2)]
    )
    result = replace(definition, calibration=lambda: _batches(calibration_items))
    if labels is not None:
        end = _affordable(definition, items, len(calibration_items))
        right = labels[real_inputs.indices[len(calibration_items) : end]]
        inputs = _together(items[len(calibration_items) : end], definition)
        result = replace(result, held_out=lambda: HeldOut(inputs, right))
        count = len(calibration_items)
        note += f"; accuracy is measured on {len(right):,}, int8 may use {count:,} others"
    is_fixed = all(spec.is_fixed for spec in definition.inputs)
    if shapes and not is_fixed and set(shapes) <= set(real_inputs.examples.shapes()):
        note += ONLY
    return replace(result, real_inputs=note)


def _read(
    source: ItemSource, inputs: Sequence[TensorSpec]
) -> tuple[Array, tuple[Arrays, ...], int]:
    """Read items drawn from all, within the limits.

    Returns:
        their indices, the items, and how many were left out because they are equal to others.
    """
    most = MAX_EXAMPLES if source.labels is None else MAX_ITEMS
    indices: list[int] = []
    items: list[Arrays] = []
    digests: set[bytes] = set()
    size, repeats, ends_at = 0, 0, time.monotonic() + READ_S
    for index in np.random.default_rng(SEED).permutation(source.count).tolist():
        late = len(items) > BATCH and time.monotonic() > ends_at
        if len(items) == most or (size > MAX_BYTES and len(items) > 1) or late:
            break
        item = read(source, index, inputs)
        digest = _digest(item)
        if digest in digests:
            repeats += 1
            continue
        digests.add(digest)
        indices.append(index)
        items.append(item)
        size += bytes_of(item)
    return np.array(indices, np.int64), tuple(items), repeats


def _digest(item: Arrays) -> bytes:
    digest = sha256(repr(shapes_of(item)).encode())
    for array in item.values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


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


def _by_shape(items: Sequence[Arrays]) -> Mapping[object, list[Arrays]]:
    groups: dict[object, list[Arrays]] = {}
    for item in items:
        groups.setdefault(shapes_of(item), []).append(item)
    return groups


def _batches(items: Sequence[Arrays]) -> list[Arrays]:
    """Return batches of equal shapes."""
    return [
        stack(group[start : start + BATCH])
        for group in _by_shape(items).values()
        for start in range(0, len(group), BATCH)
    ]


def _together(items: Sequence[Arrays], definition: Definition) -> Arrays:
    """Return all items as one batch, padded if the model allows it."""
    if len(_by_shape(items)) == 1:
        return stack(items)
    padding = padding_of(definition.inputs, definition.outputs)
    if padding is None:
        raise UsageError(
            "--examples: items with labels must have equal sizes, because the model has no "
            "padded dimension; leave out the labels, or declare one with --pad"
        )
    return padding.stack(items)


def _indices(source: ItemSource, definition: Definition, where: Path) -> Array | None:
    """Return the index of each label in the first output.

    Raises:
        UsageError: if there is not one for each item, or the model does not have it.
    """
    if source.labels is None:
        return None
    shape = definition.outputs[0].item_shape
    if len(shape) != 1 or shape[0] < 2 or _is_embedding(definition):
        raise UsageError(
            f"{where} has labels, which need a first output with a score for each label, [-1, N]; "
            f"the model's is {list(definition.outputs[0].shape)}"
        )
    if len(source.labels) != source.count:
        raise UsageError(f"{where} has {len(source.labels):,} labels for {source.count:,} items")
    names = definition.codec.score_labels or ()
    index_of: dict[str, int] = {str(index): index for index in range(shape[0])}
    index_of |= {name: index for index, name in enumerate(names)}
    indices = []
    for label in source.labels:
        index = index_of.get(str(label)) if isinstance(label, str | int) else None
        if index is None:
            choices = f"one of {', '.join(names[:9])}, or " if names else ""
            raise UsageError(
                f"{where} has the label {label!r}, and the model has {shape[0]}: it must be "
                f"{choices}an index, 0 to {shape[0] - 1}"
            )
        indices.append(index)
    return np.array(indices)


def _is_embedding(definition: Definition) -> bool:
    return isinstance(definition.codec, TextCodecSpec) and definition.codec.task == "embed"
