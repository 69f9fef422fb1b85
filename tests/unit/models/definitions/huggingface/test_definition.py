"""Definitions of folders: the same answers as transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from models.choices import TextTask
from models.codec_specs import TextCodecSpec
from models.definitions.definition import Definition
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import EncoderOptions
from models.definitions.huggingface.folder import ModelFolder
from models.inputs.tokenize import Tokenizer
from tests.texts import WORDS, tiny_tokenizer
from tests.unit.models.folders import POSITIONS, bert_config, save

TEXTS = ("a cat", "a dog in london and more", "cats")


def made(folder: Path, task: TextTask = "embed", **changes: Any) -> Definition:
    return definition_of(ModelFolder(folder), EncoderOptions(task, **changes), "It.")


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


def test_default_embedding_is_the_normalized_token_mean(tmp_path: Path) -> None:
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


def test_labels_come_from_the_config(tmp_path: Path) -> None:
    config = bert_config(id2label={0: "bad", 1: "good", 2: "other"})
    model = save(tmp_path, "BertForSequenceClassification", config)
    definition = made(tmp_path, "classify")
    codec = codec_of(definition)
    assert (codec.labels, codec.scores) == (("bad", "good", "other"), "softmax")
    torch.testing.assert_close(answer(definition, TEXTS[0])[0], hidden(model, definition, TEXTS[0]))


@pytest.mark.parametrize(
    ("fields", "scores"),
    [
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "none"),
    ],
)
def test_scores_follow_the_problem_type(
    tmp_path: Path, fields: dict[str, Any], scores: str
) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(**fields))
    assert codec_of(made(tmp_path, "classify")).scores == scores


def test_token_labels_come_from_the_config(tmp_path: Path) -> None:
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


def test_sentence_transformers_6_reranker_is_read(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(num_labels=1))
    modules = [{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    said = {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {"query": "a "},
        "default_prompt_name": "query",
    }
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    codec = codec_of(made(tmp_path, "rerank"))
    assert (codec.scores, codec.prompt) == ("none", "a ")


@pytest.mark.parametrize(
    ("order", "normalize", "kept"),
    [
        (("Normalize", "Dense"), None, ["Normalize", "Dense"]),
        (("Normalize", "Dense"), True, ["Normalize", "Dense", "Normalize"]),
        (("Dense", "Normalize"), None, ["Dense", "Normalize"]),
        (("Normalize", "Dense", "Normalize"), False, ["Normalize", "Dense"]),
        ((), None, []),
    ],
)
def test_layers_keep_their_order(
    tmp_path: Path, order: tuple[str, ...], normalize: bool | None, kept: list[str]
) -> None:
    save(tmp_path)
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in [("Transformer", ""), ("Pooling", "p"), *((each, "d") for each in order)]
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, fields in {
        "p": {"pooling_mode": "mean"},
        "d": {"in_features": 32, "out_features": 32, "bias": False},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(fields))
    save_file({"linear.weight": torch.ones(32, 32)}, tmp_path / "d/model.safetensors")
    layers = made(tmp_path, normalize=normalize).build().layers
    assert isinstance(layers, torch.nn.ModuleList)
    assert [type(each).__name__ for each in layers] == kept


def test_t5_encoder_is_loaded_without_the_decoder(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2
    )
    model = save(tmp_path, "T5EncoderModel", config)
    found = answer(made(tmp_path, normalize=False), TEXTS[0])[0]
    torch.testing.assert_close(found, hidden(model, made(tmp_path), TEXTS[0]).mean(0))


def test_encoder_files_come_from_its_subfolder(tmp_path: Path) -> None:
    below = tmp_path / "0_Transformer"
    below.mkdir()
    save(below)
    (below / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 20}))
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert codec_of(made(tmp_path)).max_tokens == 20


def test_pad_token_minus_1_means_no_padding(tmp_path: Path) -> None:
    save(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"pad_token_id": -1}))
    assert made(tmp_path).inputs[0].fill == 0


def test_sharded_and_half_precision_weights_answer_alike(tmp_path: Path) -> None:
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


def test_shortest_length_limit_applies(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 20}))
    assert codec_of(made(tmp_path)).max_tokens == 20
    assert codec_of(made(tmp_path, max_tokens=30)).max_tokens == 30
    lengths = [len(item["input_ids"]) for item in made(tmp_path).golden_inputs()]
    assert lengths == [4, 16, 20]


def test_random_inputs_vary_in_length_and_mask(tmp_path: Path) -> None:
    save(tmp_path)
    definition, rng = made(tmp_path), np.random.default_rng(0)
    batches = [definition.random_inputs(rng, 5) for _ in range(40)]
    assert len({batch["input_ids"].shape[1] for batch in batches}) > 10
    masks = np.concatenate([batch["attention_mask"].reshape(-1) for batch in batches])
    assert 0.5 < masks.mean() < 0.95
    assert all((batch["attention_mask"][:, 0] == 1).all() for batch in batches)
    for batch in batches:
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


def test_held_out_score_is_the_cosine_similarity(tmp_path: Path) -> None:
    save(tmp_path)
    definition = made(tmp_path)
    assert definition.held_out is not None
    held_out = definition.held_out()
    assert held_out.labels.shape == (128, 32)
    assert held_out.score is not None
    assert held_out.score({"embedding": 3 * held_out.labels}, held_out.labels) == pytest.approx(1)
    assert held_out.score({"embedding": -held_out.labels}, held_out.labels) == 0
