"""`TextClassifier`: the probability of each label of a text."""

from __future__ import annotations

from typing import Any

import torch

from torchlane.torchserve.text import TextHandler, ngrams_iterator
from torchlane.torchserve.util import map_class_to_label


class TextClassifier(TextHandler):
    """Answers with all labels and their probabilities; takes one text at a time."""

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """The indices of a text's tokens and pairs of tokens [n], and the tokens."""
        text = data[0].get("data") or data[0].get("body")
        if isinstance(text, bytes | bytearray):
            text = text.decode()
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        text = self._remove_punctuation(self._remove_accented_characters(text))
        tokens = self._tokenize(text)
        indices = [self.source_vocab[each] for each in ngrams_iterator(tokens, self.ngrams)]
        return torch.as_tensor(indices, device=self.device), tokens

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """See `BaseHandler`; the model takes the indices, and where each text begins."""
        indices, _ = data
        return super().inference(indices, torch.tensor([0], device=self.device))

    def postprocess(self, data: Any) -> Any:
        return map_class_to_label(torch.softmax(data, dim=1).tolist(), self.mapping)
