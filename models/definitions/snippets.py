"""Classifies text snippets as C++, CMake, English or Python; the texts ship with torch and Python.

The model is a bag of words: the mean over its tokens of a small network on their embeddings.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import BpeTrainer
from torch import nn
from torch.nn import functional

from models.codec_specs import TextCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.definitions.heads import TokenPool
from models.definitions.prose import sentences
from models.definitions.text_samples import TextSamples, text_batch, text_inputs
from models.definitions.training import Training, share_right
from models.inputs.tokenize import Tokenizer as Tokens
from models.runtimes.forms import input_tensors
from models.tensors import Array, TensorSpec

SEED = 23
VOCABULARY = 2000
SNIPPETS = 1000  # most per language
FILES = 40  # most per language: the shortest names first, which are the same everywhere
LABELS = ("c++", "cmake", "english", "python")
COMMENTS = ("//", "/*", "*", "#")  # they are English
CODEC = TextCodecSpec(
    task="classify", max_tokens=256, labels=LABELS, scores="softmax", type_ids=None
)
INPUTS = text_inputs(CODEC, VOCABULARY)

LabelledTexts = list[tuple[str, int]]  # a text, and the index of its language


class Snippets(nn.Module):
    """Tokens and mask [n, s] -> [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.hidden = nn.Linear(32, 64)
        self.pool = TokenPool("mean")
        self.last = nn.Linear(64, len(LABELS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return logits: by the manifest, scores are their softmax."""
        tokens = torch.relu(self.hidden(self.embedding(input_ids)))  # [n, s, 64]
        vectors = self.pool(tokens, attention_mask)
        logits: torch.Tensor = self.last(vectors)
        return logits


@functools.cache
def texts() -> tuple[LabelledTexts, LabelledTexts]:
    """Return training and held-out snippets: every fifth file's texts that no other file has."""
    torch_folder, standard = Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib"))
    sources = (
        _of_files((torch_folder / "include/ATen/core").glob("*.h")),
        _of_files((torch_folder / "share/cmake").rglob("*.cmake")),
        [[sentence] for sentence in sentences()],
        _of_files(standard.glob("*.py")),
    )
    train: LabelledTexts = []
    held_out: LabelledTexts = []
    for label, files in enumerate(sources):
        train_texts = dict.fromkeys(
            text for at, file in enumerate(files) if at % 5 < 4 for text in file
        )
        held_out_texts = dict.fromkeys(
            text for file in files[4::5] for text in file if text not in train_texts
        )
        train += [(text, label) for text in train_texts][: SNIPPETS * 4 // 5]
        held_out += [(text, label) for text in held_out_texts][: SNIPPETS // 5]
    order = np.random.default_rng(SEED).permutation(len(train))
    return [train[index] for index in order], held_out


def _of_files(files: Iterable[Path]) -> list[list[str]]:
    """Return every third pair of lines of each file, without comments."""
    snippets: list[list[str]] = []
    for file in sorted(files, key=lambda file: (len(file.name), file.name))[:FILES]:
        lines = [
            line.strip()
            for line in file.read_text(encoding="utf-8", errors="ignore").splitlines()
            if len(line.strip()) > 8 and not line.strip().startswith(COMMENTS)
        ]
        snippets.append(["\n".join(lines[at : at + 2]) for at in range(0, len(lines), 6)])
    return snippets


@functools.cache
def tokenizer() -> bytes:
    """Train byte pairs on the training texts."""
    result = Tokenizer(BPE(unk_token="[UNK]"))  # nosec B106 # no password
    result.pre_tokenizer = BertPreTokenizer()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    result.train_from_iterator((text for text, _ in texts()[0]), trainer)
    return result.to_str().encode()


def _arrays(samples: LabelledTexts) -> tuple[dict[str, Array], Array]:
    """Batch texts, padded to the longest, with their labels [n]."""
    alone = [(text, None) for text, _ in samples]
    batch = text_batch(Tokens(tokenizer(), CODEC), INPUTS, alone)
    return batch, np.array([label for _, label in samples])


def _collate(samples: LabelledTexts) -> list[torch.Tensor]:
    batch, labels = _arrays(samples)
    return [*input_tensors(batch, INPUTS), torch.from_numpy(labels)]


TRAINING = Training(
    source="snippets of the files of torch and of Python",
    data=lambda: texts()[0],
    loss=functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    epochs=6,
    batch=32,
    seed=SEED,
    evaluation=lambda: texts()[1],
    metrics={"accuracy": share_right},
    collate=_collate,
)


def _samples() -> TextSamples:
    return TextSamples(tokenizer(), CODEC, INPUTS, [text for text, _ in texts()[1][::7]])


DEFINITION = Definition(
    description="What a snippet of text is: C++, CMake, English or Python.",
    inputs=INPUTS,
    outputs=(TensorSpec(name="scores", dtype="float32", shape=(-1, len(LABELS))),),
    codec=CODEC,
    build=lambda: Snippets().eval(),
    train=TRAINING.fit,
    random_inputs=lambda rng, batch: _samples().random_inputs(rng, batch),
    golden_inputs=lambda: _samples().golden_inputs(),
    example=lambda: _samples().example(),
    held_out=lambda: HeldOut(*_arrays(texts()[1])),
    files=lambda: {CODEC.tokenizer: tokenizer()},
    training=TRAINING,
)
