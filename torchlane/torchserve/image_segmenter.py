"""`ImageSegmenter`: the class of each pixel."""

from __future__ import annotations

from typing import Any

import torch

from torchlane.torchserve.vision import MEAN, STD, Prepared, VisionHandler


class ImageSegmenter(VisionHandler):
    """Answers with class and probability of each pixel: [h, w, 2]."""

    image_processing: Any = Prepared(256, 224, MEAN, STD)

    def postprocess(self, data: Any) -> Any:
        best = torch.max(torch.softmax(data["out"], dim=1), dim=1)
        stacked = torch.stack([best.indices.type(best.values.dtype), best.values], dim=3)
        return stacked.tolist()
