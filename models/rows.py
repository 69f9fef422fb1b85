"""Describes outputs with as many rows as the model found, such as the boxes of a detector.

The model pads them to one size, and another output has the number of valid rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.tensors import Name, TensorSpec


def answer_outputs(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the outputs in JSON answers: without counts, with a free number of counted rows."""
    counts = {spec.count for spec in outputs}
    return tuple(
        spec
        if spec.count is None
        else spec.model_copy(update={"shape": (-1, -1, *spec.shape[2:]), "dimensions": ()})
        for spec in outputs
        if spec.name not in counts
    )


def check_rows(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    ranked_by: Name | None,
    classes: Name | None,
) -> None:
    """Check a manifest's declaration of counted rows.

    `ranked_by` is the output whose numbers rank the rows; `classes` has the class of each row.

    Raises:
        ValueError: with the contradiction.
    """
    specs = {spec.name: spec for spec in outputs}
    if with_count := [spec.name for spec in inputs if spec.count is not None]:
        raise ValueError(f"input {with_count[0]!r} has a count; only outputs are counted")
    for spec in outputs:
        if spec.count is not None:
            _check_count(spec, specs)
    if outputs[0].name in {spec.count for spec in outputs}:
        raise ValueError(f"the first output, {outputs[0].name!r}, cannot be a count")
    if ranked_by is not None:
        rank_spec = _one_per_row("ranked_by", ranked_by, specs)
        if not rank_spec.dtype.startswith("float"):
            raise ValueError(f"ranked_by needs floating-point numbers, not {rank_spec.dtype}")
    if classes is not None:
        class_spec = _one_per_row("classes", classes, specs)
        if not class_spec.dtype.startswith(("int", "uint")):
            raise ValueError(f"classes needs integers, not {class_spec.dtype}")
        if ranked_by is not None and class_spec.count != specs[ranked_by].count:
            raise ValueError(f"{classes!r} and {ranked_by!r} must have the same count")


def _check_count(spec: TensorSpec, specs: dict[str, TensorSpec]) -> None:
    count = specs.get(spec.count or "")
    if count is None:
        raise ValueError(f"the count of {spec.name!r} is {spec.count!r}, which is not an output")
    if count.item_shape or not count.dtype.startswith(("int", "uint")) or count.count is not None:
        raise ValueError(
            f"the count {count.name!r} must be integers of shape [-1], one for each item, got "
            f"{count.dtype}{list(count.shape)}"
        )
    if not spec.item_shape:
        raise ValueError(f"{spec.name!r} has a count, but no axis of rows: {list(spec.shape)}")


def _one_per_row(field: str, name: Name, specs: dict[str, TensorSpec]) -> TensorSpec:
    spec = specs.get(name)
    if spec is None or spec.count is None or len(spec.item_shape) != 1:
        raise ValueError(f"{field} is {name!r}, not a counted output with a number per row")
    return spec
