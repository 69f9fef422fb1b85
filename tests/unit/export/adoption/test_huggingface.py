"""Folders in Hugging Face's format, adopted: traced for every batch and length, and published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from export.variants.half import Half
from export.variants.int8 import Int8
from export.variants.torchscript import TorchScript
from models.choices import Pooling
from models.codec_specs import TextCodecSpec
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import EncoderOptions
from models.definitions.huggingface.folder import ModelFolder
from models.integrity import read_artifact
from tests.texts import tiny_tokenizer
from tests.unit.export.command_line import manifest_of, run
from tests.unit.export.definitions import loaded, proved, subject
from tests.unit.models.folders import POSITIONS, bert_config, save


@pytest.mark.parametrize(
    ("kind", "config", "positions"),
    [
        ("BertModel", {}, POSITIONS),
        # It counts positions from behind the index of its padding.
        ("RobertaModel", {"type_vocab_size": 1, "pad_token_id": 0}, POSITIONS - 1),
        (
            "DistilBertModel",
            {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
            POSITIONS,
        ),
        ("Qwen3Model", {"num_key_value_heads": 1, "head_dim": 16}, POSITIONS),
    ],
)
def test_trace_works_for_every_batch_and_length(
    tmp_path: Path, kind: str, config: dict[str, Any], positions: int
) -> None:
    fields = bert_config().to_dict() | config
    fields.pop("model_type")
    save(tmp_path, kind, getattr(transformers, kind.replace("Model", "Config"))(**fields))
    pooling: Pooling = "last" if kind == "Qwen3Model" else "mean"
    definition = definition_of(ModelFolder(tmp_path), EncoderOptions("embed", pooling), "It.")
    assert isinstance(definition.codec, TextCodecSpec)
    assert definition.codec.max_tokens == positions
    of = subject(definition)
    draft = TorchScript("trace").make(of, tmp_path)
    parity = proved(loaded(draft, tmp_path, definition), of, "float32", max_batch=4)
    assert parity.padded_to


def test_lossy_precisions_stay_within_tolerance(tmp_path: Path) -> None:
    save(tmp_path, config=bert_config(hidden_size=64))
    of = subject(definition_of(ModelFolder(tmp_path), EncoderOptions("embed"), "It."))
    for maker in (Half("bf16"), Int8()):
        draft = maker.make(of, tmp_path)
        proved(loaded(draft, tmp_path, of.definition), of, maker.precision)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kind", "variants"),
    [
        ("embed", "BertModel", "trace"),
        ("classify-tokens", "BertForTokenClassification", "trace"),
    ],
)
def test_folder_becomes_an_intact_artifact(
    tmp_path: Path, task: str, kind: str, variants: str
) -> None:
    folder = tmp_path / "my.model v1"
    folder.mkdir()
    save(folder, kind, bert_config(num_labels=3))
    out = tmp_path / "out"
    arguments = ("--task", task, "--out", out, "--max-batch-size", 2, "--threads", 1)
    code, printed = run("adopt", folder, *arguments, "--variants", variants)
    assert code == 0, printed
    artifact = out / "my-model-v1/1"
    read_artifact(artifact)
    manifest = manifest_of(artifact)
    assert isinstance(manifest.codec, TextCodecSpec)
    assert manifest.codec.task == task
    assert (artifact / "tokenizer.json").read_bytes() == tiny_tokenizer()
    assert set(manifest.variants) == set(variants.split(","))
    assert manifest.accuracy == (pytest.approx(1) if task == "embed" else None)


class TestRefused:
    def test_folder_without_a_task(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        save(tmp_path, "BertForPreTraining")
        assert run("adopt", tmp_path)[0] == 2
        assert (
            "with BertForPreTraining: --task embed|classify|rerank|classify-tokens says"
            in capsys.readouterr().err
        )

    @pytest.mark.parametrize(
        ("file", "option", "name"),
        [
            (".", "--scores=softmax", "--scores is not for a folder"),
            ("model.pt", "--max-tokens=9", "--max-tokens is not for a file"),
            ("model.pt", "--allow-pickle", "--allow-pickle is not for a file"),
        ],
    )
    def test_options_of_the_other_kind(
        self, tmp_path: Path, file: str, option: str, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        task = ("--task", "embed") if file == "." else ()
        assert run("adopt", tmp_path / file, *task, option, "--out", tmp_path / "out")[0] == 2
        assert name in capsys.readouterr().err

    def test_a_broken_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save(tmp_path)
        (tmp_path / "config.json").write_text("{")
        assert run("adopt", tmp_path, "--task", "embed", "--out", tmp_path / "out")[0] == 1
        assert "config.json is not JSON: Expecting property name" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_no_such_folder(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("adopt", "no/such/folder", "--task", "embed")[0] == 2
        assert "no/such/folder does not exist, and is not OWNER/NAME" in capsys.readouterr().err

    def test_a_hub_that_cannot_be_reached(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def offline(repository: str, allow_patterns: list[str]) -> str:
            assert (repository, allow_patterns) == ("owner/name", ["*.json", "*.safetensors"])
            raise ConnectionError("no network")

        monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
        assert run("adopt", "owner/name", "--task", "embed")[0] == 1
        message = "owner/name is not a folder and cannot be downloaded: no network; copy"
        assert message in capsys.readouterr().err
