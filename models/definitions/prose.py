"""English sentences for trying text models: Python's own reference, which ships with it."""

from __future__ import annotations

import functools
import re

import numpy as np

SEED = 5
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
PROSE = re.compile(r"[A-Z][\w ,;:'()\"-]{20,300}[.?!]")


@functools.cache
def sentences() -> tuple[str, ...]:
    """Return about 800 different sentences of 20 to 300 characters, always in the same order."""
    # Imported here: it is half a megabyte of text, and most models do not need it.
    from pydoc_data.topics import topics  # noqa: PLC0415

    paragraphs = (
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in topics[name].split("\n\n")
        if not paragraph.startswith(" ")  # a listing of code
    )
    texts = dict.fromkeys(
        sentence
        for paragraph in paragraphs
        for sentence in SENTENCE.split(paragraph)
        if PROSE.fullmatch(sentence)
    )
    order = np.random.default_rng(SEED).permutation(len(texts))
    return tuple([*texts][index] for index in order)
