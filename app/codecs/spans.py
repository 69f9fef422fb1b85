"""Convert token scores to labelled spans of their text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.types import Array

OUTSIDE = "O"  # the label of tokens that belong to no span
BEGINS = "B"  # of `B-label`, the first token of a span; `I-label` is a later one


class SpanFinder:
    """Finds the spans of one model.

    The prefixes `B-` and `I-` are removed from labels; `B-` begins a new span.

    Args:
        labels: labels in the order of the scores.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        parts = [_parts(label) for label in labels]
        self._names = list(dict.fromkeys([OUTSIDE, *(name for _, name in parts)]))
        self._begins = np.array([begins for begins, _ in parts])
        self._name_of = np.array([self._names.index(name) for _, name in parts])

    def find(self, scores: Array, text: str, places: Array) -> list[dict[str, object]]:
        """Runs of tokens with equal labels, as `{label, score, start, end, text}`.

        A token has the label with its highest score.

        Args:
            scores: scores of each token and label [n, labels].
            text: the item's text.
            places: places of the tokens in it [n, 2]: the first character and the one after the
                last; tokens without characters are skipped, but may begin a span with the next.

        Returns:
            spans in the order of the text; a span's score is the mean of its tokens' scores.
        """
        is_inside = places[:, 0] != places[:, 1]
        inside = np.flatnonzero(is_inside)
        every = scores.argmax(axis=-1)
        best = every[inside]
        names, is_first = self._name_of[best], self._begins[best]
        begins = np.flatnonzero(self._begins[every] & ~is_inside)  # such as a blank before a word
        nexts = np.searchsorted(inside, begins)
        begins, nexts = begins[nexts < len(inside)], nexts[nexts < len(inside)]
        is_first[nexts[self._name_of[every[begins]] == names[nexts]]] = True
        is_first[:1] = True
        is_first[1:] |= names[1:] != names[:-1]
        firsts = np.flatnonzero(is_first)
        if not firsts.size:
            return []
        lasts = np.append(firsts[1:], len(inside)) - 1
        means = np.add.reduceat(scores[inside, best], firsts, dtype=np.float64)
        means /= lasts - firsts + 1
        is_span = names[firsts] != 0  # 0 is OUTSIDE
        firsts, lasts = firsts[is_span], lasts[is_span]
        return [
            {
                "label": self._names[name],
                "score": score,
                "start": start,
                "end": end,
                "text": text[start:end],
            }
            for name, score, start, end in zip(
                names[firsts].tolist(),
                means[is_span].tolist(),
                places[inside[firsts], 0].tolist(),
                places[inside[lasts], 1].tolist(),
                strict=True,
            )
        ]


def _parts(label: str) -> tuple[bool, str]:
    """Whether a label begins a span, and the label without its prefix."""
    prefix, dash, rest = label.partition("-")
    if dash and prefix in (BEGINS, "I"):
        return prefix == BEGINS, rest
    return False, label
