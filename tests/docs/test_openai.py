"""The commands of docs/openai.md, run as they stand against models of the same names."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docs.blocks import curl_blocks
from tests.docs.test_readme import run
from tests.e2e.server import running
from tests.text_models import LABELS, SIZE, write_text_model


def test_the_commands_work(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_text_model(models, "minilm", "embed", SIZE)
    write_text_model(models, "ranker", "rerank", 1, scores="sigmoid")
    write_text_model(models, "news", "classify", len(LABELS), scores="softmax", labels=LABELS)
    with running(models, tmp_path / "log", default_model="minilm") as server:
        answers = [json.loads(run(server, script)) for script, _ in curl_blocks("docs/openai.md")]
    embeddings, vectors, ranks, labels = answers
    assert [len(each["embedding"]) for each in embeddings["data"]] == [SIZE, SIZE]
    assert [len(each) for each in vectors] == [SIZE]
    assert {each["index"] for each in ranks} == {0, 1}
    assert {each["label"] for each in labels["data"][0]} == set(LABELS)
