"""`TextHandler`: texts as tokens of a vocabulary."""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchlane.torchserve.base import BaseHandler
from torchlane.torchserve.context import Context
from torchlane.torchserve.util import CLEANUP_REGEX

# What TorchServe's table expands. Forms with a second contraction are left out: there, too, the
# first one is found before them ("couldn't've" becomes "could notve").
ENDINGS = (
    (
        "n't",
        " not",
        "are could did does do had has have is may might must need ought should was were would",
    ),
    ("'d", " would", "he i it she that there they we you"),
    ("'d", " did", "how where"),
    ("'ll", " will", "he how i it she they we what who you"),
    ("'m", " am", "i"),
    ("'re", " are", "they we what you"),
    ("'s", " is", "he how it she that there what when where who why"),
    (
        "'ve",
        " have",
        "could i might must should so they to we what when where who why will would you",
    ),
)
CONTRACTIONS = {
    "ain't": "is not",
    "can't": "cannot",
    "'cause": "because",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "so's": "so as",
    "won't": "will not",
    "y'all": "you all",
} | {
    word + ending: word + expanded for ending, expanded, words in ENDINGS for word in words.split()
}
CONTRACTION = re.compile("|".join(map(re.escape, CONTRACTIONS)), re.IGNORECASE)
# Of `basic_english`: each with a space on both sides, or replaced by one.
MARKS = (("'", " '  "), ('"', ""), *((mark, f" {mark} ") for mark in ".,()!?"))
BLANKS = (";", ":")


def get_tokenizer(tokenizer: str | None) -> Callable[[str], list[str]]:
    """A function that splits a text: at blanks, or with `basic_english` at marks, too.

    Raises:
        ValueError: there is no other.
    """
    if tokenizer is None:
        return str.split
    if tokenizer != "basic_english":
        raise ValueError(f"{tokenizer!r} is no tokenizer here: use basic_english")
    return _basic_english


def _basic_english(text: str) -> list[str]:
    text = text.lower().replace("<br />", " ")
    for mark, spaced in MARKS:
        text = text.replace(mark, spaced)
    for blank in BLANKS:
        text = text.replace(blank, " ")
    return text.split()


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """The tokens, then each two of them that follow each other, and so on."""
    for count in range(1, ngrams + 1):
        for at in range(len(token_list) - count + 1):
            yield " ".join(token_list[at : at + count])


class TextHandler(BaseHandler):
    """Cleans texts and knows the archive's vocabulary, source_vocab.pt."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer = get_tokenizer("basic_english")

    def initialize(self, context: Context) -> None:
        """See `BaseHandler`.

        Raises:
            OSError: the archive has no vocabulary.
        """
        super().initialize(context)
        path = self.manifest["model"].get("sourceVocab") or self.get_source_vocab_path(context)
        # An object of the vocabulary's own class, as TorchServe loads it; the archive is code.
        self.source_vocab = torch.load(path, weights_only=False)  # nosec B614

    def get_source_vocab_path(self, ctx: Context) -> str:
        """The path of the vocabulary."""
        return os.path.join(str(ctx.system_properties["model_dir"]), "source_vocab.pt")

    def _expand_contractions(self, text: str) -> str:
        def expanded(match: re.Match[str]) -> str:
            return match[0][0] + CONTRACTIONS[match[0].lower()][1:]

        return CONTRACTION.sub(expanded, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()

    def _remove_html_tags(self, text: str) -> str:
        return CLEANUP_REGEX.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(str.maketrans("", "", string.punctuation))

    _remove_puncutation = _remove_punctuation  # as an old TorchServe spells it

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)
