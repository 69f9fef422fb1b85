"""Folders that cannot be used are refused in one sentence."""

from __future__ import annotations

import builtins
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.choices import TextTask
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import EncoderOptions
from models.definitions.huggingface.folder import FolderError, ModelFolder
from tests.texts import tiny_tokenizer
from tests.unit.models.folders import POSITIONS, bert_config, save


def refused(folder: Path, why: str, task: TextTask = "embed", **changes: Any) -> None:
    with pytest.raises(FolderError, match=why):
        definition_of(ModelFolder(folder), EncoderOptions(task, **changes), "It.")


def edit(file: Path, **changes: Any) -> None:
    fields = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(fields | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    save(folder)
    return folder


@pytest.mark.parametrize("task", ["classify", "rerank", "classify-tokens"])
def test_weights_without_the_tasks_head(folder: Path, task: TextTask) -> None:
    why = rf"no classifier.bias, classifier.weight, which .* needs for --task {task}.*BertModel"
    refused(folder, why, task)


@pytest.mark.parametrize(
    ("saved_class", "task", "right"),
    [
        ("BertForSequenceClassification", "classify-tokens", "classify"),
        ("BertForTokenClassification", "classify", "classify-tokens"),
    ],
)
def test_weights_of_another_head(
    tmp_path: Path, saved_class: str, task: TextTask, right: str
) -> None:
    save(tmp_path, saved_class, bert_config(num_labels=2))
    why = rf"are those of a {saved_class}, not of the Bert\w+ that --task {task} needs; use --task "
    refused(tmp_path, f"{why}{right}$", task)


def test_weights_missing_a_layer(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(folder, "the weights have no encoder.layer.1.output.dense.weight, which BertModel")


def test_reranking_needs_a_single_score(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(num_labels=2))
    refused(tmp_path, "gives 2 scores, but --task rerank needs one .* --task classify", "rerank")


def test_duplicate_labels(tmp_path: Path) -> None:
    config = bert_config(id2label={0: "one", 1: "one"})
    save(tmp_path, "BertForSequenceClassification", config)
    refused(tmp_path, "labels must differ, id2label has one, one", "classify")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("[]", "config.json has a list instead of an object"),
        ("{}", "config.json is missing; transformers itself must have the model type"),
        ('{"model_type": "mine", "auto_map": {"AutoModel": "x.py"}}', "the model type 'mine'"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "transformers rejects"),
        ('{"model_type": "bert", "quantization_config": {}}', "its weights are quantized"),
        ("[" * 100_000, "config.json is not JSON"),
    ],
)
def test_configs(folder: Path, config: str, why: str) -> None:
    (folder / "config.json").write_text(config)
    refused(folder, why)


def test_model_code_is_never_run(folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    definition_of(ModelFolder(folder), EncoderOptions("embed"), "It.")
    edit(folder / "config.json", auto_map={"AutoModel": "evil.Model"})
    refused(folder, r"AutoModel is the model's own code \(auto_map\), which is never run")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["attn_implementation", "_attn_implementation"])
def test_config_cannot_choose_the_attention_implementation(folder: Path, where: str) -> None:
    edit(folder / "config.json", **{where: "evil/kernel"})
    definition_of(ModelFolder(folder), EncoderOptions("embed"), "It.")


@pytest.mark.parametrize(
    ("file", "changes", "why"),
    [
        ("config", {"id2label": {"1": "a", "2": "b"}}, "id2label is malformed: it has no label 0"),
        ("config", {"pad_token_id": 99}, "pad_token_id 99 is not one of the 12 tokens"),
        ("tokenizer_config", {"model_input_names": 5}, "model_input_names is malformed"),
    ],
)
def test_malformed_fields(tmp_path: Path, file: str, changes: dict[str, Any], why: str) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(num_labels=2))
    edit(tmp_path / f"{file}.json", **changes)
    refused(tmp_path, why, "classify")


def test_scores_that_cannot_be_served(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", bert_config(num_labels=1))
    edit(tmp_path / "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    refused(tmp_path, "score activation torch.nn.Tanh; known are: Identity, Sigmoid", "rerank")
    edit(tmp_path / "config.json", sentence_transformers=["x"])
    refused(tmp_path, "sentence_transformers is malformed", "rerank")


def test_model_type_without_the_task(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer())
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    why = "no AutoModelForTokenClassification for the model type 'vit'"
    refused(tmp_path, why, "classify-tokens")


PANICS = [
    {"type": "Precompiled", "precompiled_charsmap": each} for each in ("AAAA", "BAAAAP////8=")
]
CASED = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("file", "changes", "why"),
    [
        (
            "tokenizer_config.json",
            CASED,
            r"give different tokens .*save_pretrained\(FOLDER\) writes it",
        ),
        *(("tokenizer.json", {"normalizer": each}, "tokenizer.json: ") for each in PANICS),
        (
            "config.json",
            {"num_hidden_layers": 1},
            "no place for the weights encoder.layer.1.attention",
        ),
        (
            "config.json",
            {"num_hidden_layers": 3000},
            "says 3,000 layers, but the weights have 39 t",
        ),
        (
            INDEX,
            {"weight_map": {"a": "other.safetensors"}},
            "other.safetensors, which does not exist",
        ),
        (INDEX, {}, "has no weight_map of file names"),
    ],
)
def test_files_that_do_not_fit_each_other(
    folder: Path, file: str, changes: dict[str, Any], why: str
) -> None:
    edit(folder / file, **changes)
    refused(folder, why)


class TestTokenizer:
    def test_of_another_model(self, tmp_path: Path) -> None:
        save(tmp_path, config=bert_config(vocab_size=5))
        refused(tmp_path, "tokenizer.json has the token id 11, but the model has 5")

    @pytest.mark.parametrize("where", ["vocabulary", "post-processor"])
    def test_token_id_beyond_the_model(self, folder: Path, where: str) -> None:
        fields = json.loads((folder / "tokenizer.json").read_text())
        if where == "vocabulary":
            del fields["model"]["vocab"]["new"]  # as many tokens as before
            fields["model"]["vocab"]["evil"] = 99
        else:
            fields["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [99]
        (folder / "tokenizer.json").write_text(json.dumps(fields))
        refused(folder, "tokenizer.json has the token id 99, but the model has 12 tokens")

    def test_more_tokens_than_positions(self, folder: Path) -> None:
        why = f"--max-tokens 99: the model has {POSITIONS} positions"
        refused(folder, why, max_tokens=99)

    def test_broken(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        refused(folder, "tokenizer.json: not a file of `tokenizers`")

    def test_missing(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        refused(folder, r"there is no tokenizer.json; AutoTokenizer.* writes it")


class TestWeights:
    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            (lambda w: w.to(torch.int8), "is torch.int8: quantized weights are not supported"),
            (lambda w: w.to(torch.float8_e4m3fn), "is torch.float8_e4m3fn: quantized"),
            (lambda w: w * float("nan"), "are not finite numbers"),
        ],
    )
    def test_of_unsupported_dtypes(self, folder: Path, changed: Any, why: str) -> None:
        weights = load_file(folder / "model.safetensors")
        name = "encoder.layer.1.output.dense.weight"
        weights[name] = changed(weights[name])
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        refused(folder, f"{name} {why}")

    def test_unused_heads_and_buffers_are_ignored(self, tmp_path: Path) -> None:
        save(tmp_path, "BertForMaskedLM")
        weights = load_file(tmp_path / "model.safetensors")
        weights["bert.embeddings.position_ids"] = torch.arange(POSITIONS)[None]
        weights["bert.pooler.dense.weight"] = torch.ones(32, 32)
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
        definition_of(ModelFolder(tmp_path), EncoderOptions("embed"), "It.")

    def test_pickled_shards(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin.index.json").write_text("{}")
        refused(folder, "pickled weights in several files are not supported", allow_pickle=True)

    def test_an_index_that_leads_out_of_the_folder(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
        edit(folder / "model.safetensors.index.json", weight_map={"a": "../model.safetensors"})
        refused(folder, "../model.safetensors leads out of the folder")

    def test_pickled_weights_need_the_option(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
        refused(folder, "pytorch_model.bin is pickled, and a pickle can run any code: save the mod")
        definition_of(ModelFolder(folder), EncoderOptions("embed", allow_pickle=True), "It.")

    def test_pickled_code_is_always_refused(self, folder: Path, tmp_path: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil(tmp_path / "ran"), 2))
        refused(folder, "pytorch_model.bin has more than weights", allow_pickle=True)
        torch.save([1], folder / "pytorch_model.bin")
        refused(folder, "pytorch_model.bin is not a state_dict", allow_pickle=True)
        assert not (tmp_path / "ran").exists()

    def test_cut_off(self, folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[:-100])
        refused(folder, "model.safetensors is not safetensors: ")

    def test_none(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        refused(folder, "there is no model.safetensors")


class TestLinks:
    def test_out_of_the_folder(self, folder: Path) -> None:
        (folder / "config.json").rename(folder.parent / "config.json")
        (folder / "config.json").symlink_to("../config.json")
        refused(folder, "config.json leads out of the folder: put the file itself there")

    def test_into_the_blobs_of_the_cache(self, folder: Path, tmp_path: Path) -> None:
        snapshot = tmp_path / "cache/snapshots/1234"
        snapshot.parent.mkdir(parents=True)
        folder.rename(snapshot)
        (tmp_path / "cache/blobs").mkdir()
        (snapshot / "config.json").rename(tmp_path / "cache/blobs/ab")
        (snapshot / "config.json").symlink_to("../../blobs/ab")
        definition_of(ModelFolder(snapshot), EncoderOptions("embed"), "It.")


def test_missing_extra_is_a_one_line_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("transformers"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    refused(folder, r"need transformers: pip install 'torchlane\[huggingface\]'")


class _Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.file), "w")


def test_weights_of_another_size(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=16)
    refused(folder, "the weights")
