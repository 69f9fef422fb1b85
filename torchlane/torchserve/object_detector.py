"""`ObjectDetector`: boxes with their labels."""

from __future__ import annotations

from typing import Any

from torchlane.torchserve.util import map_class_to_label
from torchlane.torchserve.vision import Prepared, VisionHandler


class ObjectDetector(VisionHandler):
    """Answers with the boxes whose score is at least `threshold`."""

    image_processing: Any = Prepared()
    threshold = 0.5

    def postprocess(self, data: Any) -> Any:
        """See `BaseHandler`; the model gives a dict for each picture, as torchvision's do."""
        return [self._objects(each) for each in data]

    def _objects(self, outputs: Any) -> list[dict[str, Any]]:
        is_sure = outputs["scores"] >= self.threshold
        boxes, labels, scores = (
            outputs[name][is_sure].tolist() for name in ("boxes", "labels", "scores")
        )
        return [
            {**map_class_to_label([[box]], self.mapping, [[label]])[0], "score": score}
            for box, label, score in zip(boxes, labels, scores, strict=True)
        ]
