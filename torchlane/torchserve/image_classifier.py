"""`ImageClassifier`: the labels with the highest probabilities."""

from __future__ import annotations

from typing import Any

import torch

from torchlane.torchserve.util import map_class_to_label
from torchlane.torchserve.vision import MEAN, STD, Prepared, VisionHandler


class ImageClassifier(VisionHandler):
    """Answers with the `topk` labels and their probabilities."""

    topk = 5
    image_processing: Any = Prepared(256, 224, MEAN, STD)

    def set_max_result_classes(self, topk: int) -> None:
        """Set the number of labels."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """The number of labels."""
        return self.topk

    def postprocess(self, data: Any) -> Any:
        values, indices = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(values.tolist(), self.mapping, indices.tolist())
