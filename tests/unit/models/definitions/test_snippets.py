"""The classifier of snippets: its texts, its tokenizer, and what it makes of unseen texts."""

from __future__ import annotations

import dataclasses

from export.proving.verify import accuracy
from models.definitions import snippets
from models.definitions.snippets import CODEC, DEFINITION, LABELS, VOCABULARY, texts
from models.inputs.tokenize import Tokenizer
from models.runtimes.forms import intra_op_threads
from tests.unit.export.definitions import quiet


def test_held_out_texts_come_from_other_files() -> None:
    train, held_out = texts()
    assert not {text for text, _ in train} & {text for text, _ in held_out}
    for label in range(len(LABELS)):
        some, others = (sum(each == label for _, each in part) for part in (train, held_out))
        assert some > 200
        assert 0.15 < others / (some + others) < 0.4


def test_the_tokenizer_fits_the_inputs() -> None:
    assert DEFINITION.files is not None
    tokenizer = Tokenizer(DEFINITION.files()["tokenizer.json"], CODEC)
    assert tokenizer.vocabulary <= VOCABULARY
    assert tokenizer.tokens("def run(self):").ids.min() > 1  # neither padding nor unknown


def test_a_short_training_tells_most_snippets() -> None:
    """Twice as many epochs end at more than 0.93."""
    short = dataclasses.replace(snippets.TRAINING, epochs=3)
    module = DEFINITION.build()
    assert DEFINITION.held_out is not None
    with intra_op_threads(1):  # as for shapes
        short.fit(module, quiet)
        assert accuracy(module, DEFINITION, DEFINITION.held_out()) > 0.9
