"""Right vectors of sentences, in the order of the sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.bench.answers import answers_of
from loadtests.bench.peers.encoder import Encoder
from tests.artifacts import write_artifact
from tests.texts import IDS, write_text


def test_each_sentence_gets_its_own_vector(tmp_path: Path) -> None:
    folder = write_text(tmp_path)
    texts = ["cat " * (number % 7) for number in range(40)]
    ends = IDS["[CLS]"] + IDS["[SEP]"]
    wanted = [(ends + IDS["cat"] * (n % 7)) / (2 + n % 7) for n in range(40)]
    vectors = Encoder(folder, "plan").vectors(np.array(texts))
    np.testing.assert_allclose(vectors[:, 0], wanted, rtol=1e-6)
    with answers_of(folder) as right:
        np.testing.assert_array_equal(right(np.array(texts)), vectors)


def test_model_without_text_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not read texts"):
        Encoder(write_artifact(tmp_path, "double"), "script")
