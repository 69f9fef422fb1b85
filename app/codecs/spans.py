"""From the scores of tokens to labelled spans of their text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.types import Array

OUTSIDE = "O"  # the label of tokens that belong to no span
BEGINS = "B"  # of `B-label`, the first token of a span; `I-label` is a later one


def spans_of(
    scores: Array, labels: Sequence[str], text: str, tokens: Sequence[tuple[int, int]]
) -> list[dict[str, object]]:
    """Runs of tokens with equal labels, as `{label, score, start, end, text}`.

    The label of a token is its highest one. `B-` and `I-` before a label are left out, and `B-`
    begins a new run.

    Args:
        scores: of each token and label [n, len(labels)].
        labels: in the order of the scores.
        text: of the item.
        tokens: n places in it, first character and the one after the last; those without any
            character are skipped.

    Returns:
        spans in the order of the text; the score is the mean of its tokens.
    """
    spans: list[dict[str, object]] = []
    best = scores.argmax(axis=-1)
    run: list[int] = []
    before = OUTSIDE

    def end() -> None:
        if run and before != OUTSIDE:
            start, stop = tokens[run[0]][0], tokens[run[-1]][1]
            score = scores[run, best[run]].mean(dtype=np.float64)
            found = {"label": before, "score": float(score), "start": start, "end": stop}
            spans.append({**found, "text": text[start:stop]})
        run.clear()

    for place, (start, stop) in enumerate(tokens):
        if start == stop:
            continue
        begins, label = _parts(labels[int(best[place])])
        if begins or label != before:
            end()
        before = label
        run.append(place)
    end()
    return spans


def _parts(label: str) -> tuple[bool, str]:
    """Whether a label begins a span, and the label without that."""
    prefix, dash, rest = label.partition("-")
    if dash and prefix in (BEGINS, "I"):
        return prefix == BEGINS, rest
    return False, label
