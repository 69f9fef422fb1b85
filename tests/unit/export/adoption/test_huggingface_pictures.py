"""Models of pictures, and both towers of CLIP and SigLIP: the answers of the library's own code."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

transformers = pytest.importorskip(
    "transformers", reason="needs pip install 'torchlane[huggingface]'"
)

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer, processors  # noqa: E402

from export.adoption.adopt import Adoption  # noqa: E402
from export.errors import ExportError, UsageError  # noqa: E402
from export.variants.torchscript import TorchScript  # noqa: E402
from models.codec_specs import ImageCodecSpec, TextCodecSpec  # noqa: E402
from models.inputs.preprocess import preprocess  # noqa: E402
from models.inputs.tokenize import Tokenizer as OurTokenizer  # noqa: E402
from models.tensors import stack  # noqa: E402
from tests.texts import WORDS, tiny_tokenizer  # noqa: E402
from tests.unit.export.definitions import loaded, proved, subject  # noqa: E402
from tests.unit.export.torchscripts import run, written  # noqa: E402
from tests.unit.models.folders import (  # noqa: E402
    POSITIONS,
    SIDE,
    bert_config,
    save,
    save_clip,
    save_siglip,
    save_vit,
)

TEXTS = ("a cat", "new london in a dog", "b")
SEP = WORDS.index("[SEP]")


def picture(transparent: bool = False) -> bytes:
    """A PNG that is wider than high."""
    levels = np.random.default_rng(4).integers(0, 256, (41, 60, 3 + transparent), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def of_picture(adoption: Adoption, data: bytes) -> torch.Tensor:
    codec = adoption.definition.codec
    assert isinstance(codec, ImageCodecSpec)
    with torch.inference_mode():
        answer: torch.Tensor = adoption.definition.build()(
            torch.tensor(preprocess(data, codec.preprocess))[None]
        )
    return answer


def of_text(adoption: Adoption, text: str) -> torch.Tensor:
    """The answer to a text as the server tokenises it."""
    codec, files = adoption.definition.codec, adoption.definition.files
    assert isinstance(codec, TextCodecSpec)
    assert files is not None
    tokenizer = OurTokenizer(files()[codec.tokenizer], codec)
    item = stack([tokenizer.arrays(tokenizer.tokens(text))])
    with torch.inference_mode():
        answer: torch.Tensor = adoption.definition.build()(*map(torch.tensor, item.values()))
    return answer


def check_cosine(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    assert mine.shape == theirs.shape
    assert float(torch.cosine_similarity(mine, theirs)) > 0.9999
    assert float(mine.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("make", [save_clip, save_siglip])
@pytest.mark.parametrize("transparent", [False, True])
def test_vision_towers(
    tmp_path: Path, make: Callable[[Path], tuple[Any, Any]], transparent: bool
) -> None:
    model, processor = make(tmp_path)
    data = picture(transparent)
    adoption = run(tmp_path, "--task", "embed", "--tower", "vision")
    assert adoption.name == f"{tmp_path.name}-vision"
    with torch.inference_mode():
        inputs = processor(Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt")
        theirs = model.get_image_features(**inputs).pooler_output
    check_cosine(of_picture(adoption, data), theirs)
    assert not any("text" in name for name, _ in adoption.definition.build().named_parameters())


@pytest.mark.parametrize("end", [2, SEP])  # 2 stands for the largest token, in old files
def test_the_text_tower_of_clip(tmp_path: Path, end: int) -> None:
    model, _ = save_clip(tmp_path, end=end)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    adoption = run(tmp_path, "--task", "embed", "--tower", "text")
    assert adoption.name == f"{tmp_path.name}-text"
    assert isinstance(adoption.definition.codec, TextCodecSpec)
    assert (adoption.definition.codec.task, adoption.definition.codec.max_tokens) == (
        "embed",
        POSITIONS,
    )
    assert not any("vis" in name for name, _ in adoption.definition.build().named_parameters())
    for text in TEXTS:
        with torch.inference_mode():
            inputs = theirs(text, return_tensors="pt")
            features = model.get_text_features(inputs["input_ids"], inputs["attention_mask"])
        check_cosine(of_text(adoption, text), features.pooler_output)


def test_the_text_tower_of_siglip(tmp_path: Path) -> None:
    """It learned from texts padded to all of its positions, without a mask."""
    model, _ = save_siglip(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    adoption = run(tmp_path, "--task", "embed", "--tower", "text")
    for text in TEXTS:
        padded = theirs(text, return_tensors="pt", padding="max_length", max_length=POSITIONS)
        with torch.inference_mode():
            features = model.get_text_features(padded["input_ids"])
        check_cosine(of_text(adoption, text), features.pooler_output)


@pytest.mark.parametrize("make", [save_clip, save_siglip])
def test_padding_changes_no_vector(tmp_path: Path, make: Callable[[Path], tuple[Any, Any]]) -> None:
    """Also of texts without an end token, for which CLIP would take one of the padding."""
    make(tmp_path)
    of = subject(run(tmp_path, "--task", "embed", "--tower", "text").definition)
    draft = TorchScript("trace").make(of, tmp_path)
    parity = proved(loaded(draft, tmp_path, of.definition), of, "float32", max_batch=5)
    assert POSITIONS in parity.padded_to


@pytest.mark.parametrize(
    ("fields", "scores"),
    [({}, "softmax"), ({"problem_type": "multi_label_classification"}, "sigmoid")],
)
def test_a_classifier(tmp_path: Path, fields: dict[str, str], scores: str) -> None:
    labels = {0: "red", 1: "green", 2: "blue"}
    model, processor = save_vit(
        tmp_path, "ViTForImageClassification", num_labels=3, id2label=labels, **fields
    )
    adoption = run(tmp_path, "--task", "classify")
    codec = adoption.definition.codec
    assert (codec.labels, codec.scores) == (("red", "green", "blue"), scores)
    logits = of_picture(adoption, picture())[0]
    mine = logits.softmax(-1) if scores == "softmax" else logits.sigmoid()
    pipeline = transformers.pipeline("image-classification", model=model, image_processor=processor)
    theirs = {each["label"]: each["score"] for each in pipeline(Image.open(io.BytesIO(picture())))}
    assert mine.tolist() == pytest.approx([theirs[label] for label in labels.values()], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "vector"),
    [
        ("ViTModel", (), lambda adoption: adoption.pooler_output),
        ("ViTModel", ("--pooling", "mean"), lambda adoption: adoption.last_hidden_state.mean(1)),
        # Its encoder was saved without a pooler.
        ("ViTForImageClassification", (), lambda adoption: adoption.last_hidden_state[:, 0]),
    ],
)
def test_vectors_of_pictures(
    tmp_path: Path, kind: str, options: tuple[str, ...], vector: Callable[[Any], torch.Tensor]
) -> None:
    model, processor = save_vit(tmp_path, kind)
    adoption = run(tmp_path, "--task", "embed", "--no-normalize", *options)
    with torch.inference_mode():
        inputs = processor(Image.open(io.BytesIO(picture())), return_tensors="pt")
        theirs = vector(model.base_model(**inputs))
    torch.testing.assert_close(of_picture(adoption, picture()), theirs, rtol=1e-4, atol=1e-5)


def test_a_tokenizer_that_adds_no_tokens(tmp_path: Path) -> None:
    """As GPT-2 has it."""
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=32, n_layer=2, n_head=2, n_positions=POSITIONS
    )
    model = save(tmp_path, "GPT2Model", config)
    tokenizer = Tokenizer.from_str(tiny_tokenizer().decode())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    adoption = run(tmp_path, "--task", "embed", "--pooling", "last")
    ids = torch.tensor([[WORDS.index("a"), WORDS.index("cat")]])
    with torch.inference_mode():
        theirs = model(ids).last_hidden_state[:, -1]
    check_cosine(of_text(adoption, "a cat"), theirs)


def adapter(folder: Path) -> None:
    save(folder)
    written(
        folder, json.dumps({"base_model_name_or_path": "org/base"}).encode(), "adapter_config.json"
    )


def clip(folder: Path) -> None:
    save_clip(folder)


def classifier(folder: Path) -> None:
    save_vit(folder, "ViTForImageClassification")


def unprepared(folder: Path) -> None:
    classifier(folder)
    (folder / "preprocessor_config.json").unlink()


def other_size(folder: Path) -> None:
    classifier(folder)
    file = folder / "preprocessor_config.json"
    size = {"height": SIDE, "width": SIDE + 8}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": size}))


def unknown_step(folder: Path) -> None:
    classifier(folder)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sharpen": True}))


def left(folder: Path) -> None:
    save_siglip(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": "left"}))


def texts(folder: Path) -> None:
    save(folder, "BertForSequenceClassification", bert_config(num_labels=2))


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


EMBED, TEXT = ("--task", "embed"), ("--task", "embed", "--tower", "text")


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (nothing, (), r": an empty folder: a folder must have what save_pretrained of"),
        (adapter, (), r": a LoRA adapter .*, org/base: merge .*merge_and_unload\(\)"),
        (clip, (), "a folder with CLIPModel: texts and pictures have a tower each, .* --tower v"),
        (clip, (*TEXT, "--pooling", "mean"), "--pooling is for models with one tower"),
        (left, TEXT, "AutoTokenizer pads a text as \\[0, 0, .* that end with token 0: correct"),
        (clip, ("--task", "classify"), "the weights have no classifier"),
        (classifier, (), r"with ViTForImageClassification: add --task classify \(or embed\)"),
        (classifier, TEXT, "--tower is for models with one tower for texts and one for pict"),
        (classifier, (*EMBED, "--pooling", "last"), "--pooling last is for texts, and the model"),
        (classifier, (*EMBED, "--max-tokens", "9"), "--max-tokens is for texts, and the model"),
        (unprepared, EMBED, "there is no preprocessor_config.json, which says how pictures are"),
        (other_size, EMBED, r"the model fails on a picture of 40 x 32 pixels: .*doesn't match"),
        (unknown_step, EMBED, r"preprocessor_config\.json: do_sharpen: the key is unknown$"),
        (texts, (), r"with BertForSequenceClassification: add --task classify \(or rerank"),
    ],
)
def test_refusals(
    tmp_path: Path, make: Callable[[Path], None], options: tuple[str, ...], why: str
) -> None:
    make(tmp_path)
    with pytest.raises(ExportError, match=why) as refused:
        run(tmp_path, *options)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, UsageError) == ("--task" not in options or "are for" in why)


def test_a_folder_with_a_model_file(tmp_path: Path) -> None:
    """The message names the file."""
    shutil.copy(written(tmp_path, b"", "model.pt"), tmp_path / "notes.txt")
    with pytest.raises(
        UsageError, match=r"no config\.json, but model\.pt, notes\.txt: .*, name it: /"
    ):
        run(tmp_path)
