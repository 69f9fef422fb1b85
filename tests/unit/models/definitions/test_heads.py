"""Heads: padding never counts, and precisions fit together."""

from __future__ import annotations

import pytest
import torch

from models.definitions.heads import Dense, Normalize, Pool, Pooling

TOKENS = torch.tensor([[[1.0, 2], [3, 4], [50, 60]], [[5, 6], [70, 80], [90, 99]]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", [[2, 3], [5, 6]]), ("cls", [[1, 2], [5, 6]]), ("last", [[3, 4], [5, 6]])],
)
def test_padding_does_not_count(how: Pooling, expected: list[list[float]]) -> None:
    assert Pool(how)(TOKENS, MASK).tolist() == expected
    scripted = torch.jit.script(Pool(how))
    assert scripted(TOKENS, MASK).tolist() == expected


def test_nothing_but_padding_is_zeros_not_nan() -> None:
    vectors = Pool("mean")(TOKENS, torch.zeros_like(MASK))
    assert Normalize()(vectors).tolist() == [[0, 0], [0, 0]]
    assert torch.isfinite(Pool("last")(TOKENS, torch.zeros_like(MASK))).all()


def test_the_mean_of_many_tokens_in_half_precision_is_summed_in_full() -> None:
    tokens = torch.full((1, 3000, 1), 1.0, dtype=torch.bfloat16)
    assert Pool("mean")(tokens, torch.ones(1, 3000, dtype=torch.int64)).tolist() == [[1.0]]


@pytest.mark.parametrize("how", ["mean", "cls", "last"])
def test_a_dense_layer_in_half_precision_follows(how: Pooling) -> None:
    dense = Dense(torch.nn.Linear(2, 3), torch.nn.Tanh()).to(torch.bfloat16)
    assert dense(Pool(how)(TOKENS.to(torch.bfloat16), MASK)).dtype == torch.bfloat16


def test_an_unknown_pooling() -> None:
    with pytest.raises(ValueError, match="pooling must be mean, cls, last, got 'max'"):
        Pool("max")  # type: ignore[arg-type]
