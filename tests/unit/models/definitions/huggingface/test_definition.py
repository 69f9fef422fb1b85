"""Definitions of folders: the same answers as transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.definitions.definition import Definition
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import Wanted
from models.definitions.huggingface.folder import ModelFolder
from models.manifest import TextCodecSpec, TextTask
from models.tokenize import Tokenizer
from tests.huggingface import POSITIONS, bert_config, save
from tests.texts import WORDS, tiny_tokenizer

TEXTS = ("a cat", "a dog in london and more", "cats")


def made(folder: Path, task: TextTask = "embed", **changes: Any) -> Definition:
    return definition_of(ModelFolder(folder), Wanted(task, **changes), "It.")


def codec_of(definition: Definition) -> TextCodecSpec:
    assert isinstance(definition.codec, TextCodecSpec)
    return definition.codec


def answer(definition: Definition, text: str, second: str | None = None) -> torch.Tensor:
    tokenizer = Tokenizer(tiny_tokenizer(), codec_of(definition))
    arrays = tokenizer.arrays(tokenizer.tokens(text, second))
    with torch.inference_mode():
        answer: torch.Tensor = definition.build()(
            *(torch.from_numpy(arrays[spec.name])[None] for spec in definition.inputs)
        )
    return answer


def hidden(model: Any, definition: Definition, text: str) -> torch.Tensor:
    """The token vectors [s, d] that the model itself gives."""
    ids = torch.from_numpy(Tokenizer(tiny_tokenizer(), codec_of(definition)).tokens(text).ids)
    with torch.inference_mode():
        vectors: torch.Tensor = model(ids[None])[0][0]
    return vectors


def test_the_mean_of_the_tokens_with_the_length_1_unless_told_otherwise(tmp_path: Path) -> None:
    model = save(tmp_path)
    definition = made(tmp_path)
    assert [str(spec) for spec in (*definition.inputs, *definition.outputs)] == [
        f"input_ids=int64[-1,1<=seq<={POSITIONS}] in 0..{len(WORDS) - 1}",
        f"attention_mask=int64[-1,1<=seq<={POSITIONS}] in 0..1",
        f"token_type_ids=int64[-1,1<=seq<={POSITIONS}] in 0..1",
        "embedding=float32[-1,32]",
    ]
    for text in TEXTS:
        mean = hidden(model, definition, text).mean(0)
        torch.testing.assert_close(answer(definition, text)[0], mean / mean.norm())


@pytest.mark.parametrize(("pooling", "at"), [("cls", 0), ("last", -1)])
def test_one_token_as_it_is(tmp_path: Path, pooling: Any, at: int) -> None:
    model = save(tmp_path)
    definition = made(tmp_path, pooling=pooling, normalize=False)
    for text in TEXTS:
        torch.testing.assert_close(answer(definition, text)[0], hidden(model, definition, text)[at])


def test_labels_come_from_the_config(tmp_path: Path) -> None:
    config = bert_config(id2label={0: "bad", 1: "good", 2: "other"})
    model = save(tmp_path, "BertForSequenceClassification", config)
    definition = made(tmp_path, "classify")
    codec = codec_of(definition)
    assert (codec.labels, codec.scores) == (("bad", "good", "other"), "softmax")
    torch.testing.assert_close(answer(definition, TEXTS[0])[0], hidden(model, definition, TEXTS[0]))


def test_several_labels_at_once_are_sigmoids(tmp_path: Path) -> None:
    config = bert_config(problem_type="multi_label_classification")
    save(tmp_path, "BertForSequenceClassification", config)
    assert codec_of(made(tmp_path, "classify")).scores == "sigmoid"


def test_labels_of_tokens(tmp_path: Path) -> None:
    config = bert_config(id2label={0: "O", 1: "B-PLACE", 2: "I-PLACE"})
    save(tmp_path, "BertForTokenClassification", config)
    definition = made(tmp_path, "classify-tokens")
    (output,) = definition.outputs
    assert (output.item_shape, output.axes[0].name) == ((-1, 3), "seq")
    assert codec_of(definition).labels == ("O", "B-PLACE", "I-PLACE")
    assert answer(definition, "a cat in london").shape == (1, 6, 3)


@pytest.mark.parametrize(
    ("said", "scores"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
    ],
)
def test_a_pair_gets_one_score(tmp_path: Path, said: dict[str, Any], scores: str) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(num_labels=1, **said))
    definition = made(tmp_path, "rerank")
    codec = codec_of(definition)
    assert (codec.pairs, codec.scores, codec.labels) == (True, scores, None)
    assert answer(definition, "a cat", "a dog").shape == (1, 1)
    assert definition.example() is not None


def test_shards_and_half_precision_give_the_same_answers(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    save(whole)
    save(parts, max_shard_size="10KB")
    assert not (parts / "model.safetensors").exists()
    torch.testing.assert_close(answer(made(parts), TEXTS[1]), answer(made(whole), TEXTS[1]))
    half = transformers.BertModel.from_pretrained(whole, dtype=torch.float16)
    half.save_pretrained(whole)
    found = answer(made(whole), TEXTS[1])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, answer(made(parts), TEXTS[1]), atol=2e-3, rtol=0)


def test_the_shortest_of_all_limits_counts(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 20}))
    assert codec_of(made(tmp_path)).max_tokens == 20
    assert codec_of(made(tmp_path, max_tokens=30)).max_tokens == 30
    lengths = [len(item["input_ids"]) for item in made(tmp_path).golden_inputs()]
    assert lengths == [4, 16, 20]


def test_random_inputs_are_of_many_lengths_and_partly_masked(tmp_path: Path) -> None:
    save(tmp_path)
    definition, rng = made(tmp_path), np.random.default_rng(0)
    batches = [definition.random_inputs(rng, 5) for _ in range(40)]
    assert len({batch["input_ids"].shape[1] for batch in batches}) > 10
    masks = np.concatenate([batch["attention_mask"].reshape(-1) for batch in batches])
    assert 0.5 < masks.mean() < 0.95
    assert all((batch["attention_mask"][:, 0] == 1).all() for batch in batches)
    for batch in batches:
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


def test_the_cosine_of_held_out_sentences_is_1_for_itself(tmp_path: Path) -> None:
    save(tmp_path)
    definition = made(tmp_path)
    assert definition.held_out is not None
    held_out = definition.held_out()
    assert held_out.labels.shape == (128, 32)
    assert held_out.score is not None
    assert held_out.score({"embedding": 3 * held_out.labels}, held_out.labels) == pytest.approx(1)
    assert held_out.score({"embedding": -held_out.labels}, held_out.labels) == 0
