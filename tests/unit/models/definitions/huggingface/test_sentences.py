"""What sentence-transformers' files say is done, and what cannot be done is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.definitions.heads import Dense, Normalize
from models.definitions.huggingface.folder import FolderError, ModelFolder
from models.definitions.huggingface.sentences import SentenceParts, sentence_parts

ST = "sentence_transformers.models"
TYPES = ("Transformer", "Pooling", "Dense", "Normalize")


def write(folder: Path, **files: Any) -> ModelFolder:
    """As sentence-transformers 2 wrote it; changed files by name, with _ for their folder."""
    content: dict[str, Any] = {
        "modules": [
            {
                "idx": at,
                "name": str(at),
                "path": f"{at}_{kind}" if at else "",
                "type": f"{ST}.{kind}",
            }
            for at, kind in enumerate(TYPES)
        ],
        "1_Pooling/config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "2_Dense/config": {
            "in_features": 3,
            "out_features": 2,
            "bias": False,
            "activation_function": "torch.nn.modules.activation.ReLU",
        },
        "sentence_bert_config": {"max_seq_length": 17, "do_lower_case": False},
        "config_sentence_transformers": {
            "prompts": {"query": "query: "},
            "default_prompt_name": "query",
        },
    }
    for name, value in (content | files).items():
        file = folder / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(value))
    save_file({"linear.weight": torch.ones(2, 3)}, folder / "2_Dense/model.safetensors")
    return ModelFolder(folder)


def test_no_files_give_empty_parts(tmp_path: Path) -> None:
    assert sentence_parts(ModelFolder(tmp_path)) == SentenceParts()


def test_all_module_files_are_read(tmp_path: Path) -> None:
    parts = sentence_parts(write(tmp_path))
    assert (parts.pooling, parts.max_tokens, parts.prompt) == ("cls", 17, "query: ")
    dense, normalize = parts.layers
    assert isinstance(dense, Dense)
    assert isinstance(normalize, Normalize)
    assert dense(torch.tensor([[1.0, 2, 3], [-1, 0, 0]])).tolist() == [[6, 6], [0, 0]]


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
    ],
)
def test_pooling_is_read_by_name_or_flag(tmp_path: Path, config: Any, pooling: str) -> None:
    assert sentence_parts(write(tmp_path, **{"1_Pooling/config": config})).pooling == pooling


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("modules", {}, "modules.json is not a list of modules"),
        ("modules", [], "modules.json is not a list of modules"),
        ("modules", [{"type": f"{ST}.WordEmbeddings", "path": ""}], "begins with WordEmbeddings"),
        (
            "modules",
            [{"type": f"{ST}.Transformer", "path": ""}, {"type": f"{ST}.LSTM", "path": ""}],
            "modules.json has LSTM there",
        ),
        ("1_Pooling/config", {"pooling_mode": "max"}, "its pooling is max; mean, cls, lasttoken"),
        ("1_Pooling/config", {}, "its pooling is not said"),
        (
            "1_Pooling/config",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "its pooling is cls and mean; .* one at a time",
        ),
        (
            "1_Pooling/config",
            {"pooling_mode": "mean", "include_prompt": False},
            "excludes the prompt",
        ),
        ("2_Dense/config", {"in_features": 4, "out_features": 2}, "does not fit its weights"),
        ("2_Dense/config", {"activation_function": "os.system"}, "an activation 'system'"),
        ("modules", [{"type": "custom_st.Transformer", "path": ""}], "has custom_st.Transformer,"),
        ("modules", [{"type": f"{ST}.Transformer", "path": "a\0b"}], "path .* is malformed"),
        ("modules", [{"type": f"{ST}.Transformer", "path": "a" * 5000}], "path .* is malformed"),
        ("sentence_bert_config", {"max_seq_length": -1}, "max_seq_length is malformed"),
        ("sentence_bert_config", {"do_lower_case": True}, "sets do_lower_case"),
        ("config_sentence_transformers", {"default_prompt_name": "x"}, "has no prompt 'x'"),
    ],
)
def test_unsupported_modules_are_refused(tmp_path: Path, file: str, content: Any, why: str) -> None:
    with pytest.raises(FolderError, match=why):
        sentence_parts(write(tmp_path, **{file: content}))


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "modules.json").symlink_to("modules.json")
    with pytest.raises(FolderError, match=r"the path 'modules.json' is malformed"):
        sentence_parts(ModelFolder(tmp_path))


def test_pickled_dense_layer_needs_the_option(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (tmp_path / "2_Dense/model.safetensors").unlink()
    torch.save({"linear.weight": torch.ones(2, 3)}, tmp_path / "2_Dense/pytorch_model.bin")
    with pytest.raises(FolderError, match=r"2_Dense/pytorch_model.bin is pickled"):
        sentence_parts(folder)
    assert len(sentence_parts(folder, allow_pickle=True).layers) == 2


def test_max_tokens_of_another_transformer_type(tmp_path: Path) -> None:
    folder = write(tmp_path, sentence_roberta_config={"max_seq_length": 9})
    (tmp_path / "sentence_bert_config.json").unlink()
    assert sentence_parts(folder).max_tokens == 9


def test_reranker_allows_only_a_transformer(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="has Pooling; for --task rerank only a Transformer"):
        sentence_parts(write(tmp_path), "rerank")
