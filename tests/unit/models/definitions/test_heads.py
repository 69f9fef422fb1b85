"""Heads: padding never counts, and precisions fit together."""

from __future__ import annotations

import pytest
import torch

from models.choices import Pooling
from models.definitions.heads import Dense, Normalize, TokenPool

TOKENS = torch.tensor([[[1.0, 2], [3, 4], [50, 60]], [[5, 6], [70, 80], [90, 99]]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", [[2, 3], [5, 6]]), ("cls", [[1, 2], [5, 6]]), ("last", [[3, 4], [5, 6]])],
)
def test_pooling_ignores_padding(how: Pooling, expected: list[list[float]]) -> None:
    assert TokenPool(how)(TOKENS, MASK).tolist() == expected
    scripted = torch.jit.script(TokenPool(how))
    assert scripted(TOKENS, MASK).tolist() == expected


def test_all_padding_gives_zeros_not_nan() -> None:
    vectors = TokenPool("mean")(TOKENS, torch.zeros_like(MASK))
    assert Normalize()(vectors).tolist() == [[0, 0], [0, 0]]
    assert torch.isfinite(TokenPool("last")(TOKENS, torch.zeros_like(MASK))).all()


def test_half_precision_mean_sums_in_float32() -> None:
    tokens = torch.full((1, 3000, 1), 1.0, dtype=torch.bfloat16)
    assert TokenPool("mean")(tokens, torch.ones(1, 3000, dtype=torch.int64)).tolist() == [[1.0]]


@pytest.mark.parametrize("how", ["mean", "cls", "last"])
def test_dense_layer_keeps_half_precision(how: Pooling) -> None:
    dense = Dense(torch.nn.Linear(2, 3), torch.nn.Tanh()).to(torch.bfloat16)
    assert dense(TokenPool(how)(TOKENS.to(torch.bfloat16), MASK)).dtype == torch.bfloat16


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match="pooling must be mean, cls, last, got 'max'"):
        TokenPool("max")  # type: ignore[arg-type]
