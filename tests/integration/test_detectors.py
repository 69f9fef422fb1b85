"""Detectors of torchvision, and one like YOLO: adopted with the documented wrapper, and served.

Weights are random: a picture must have the detector's own answer, in the picture's pixels.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export import cli
from models.codec_specs import ImageCodecSpec
from models.integrity import read_artifact
from models.preprocess import preprocess
from tests.integration.harness import serving
from tests.unit.models.pictures import encoded, noise

try:
    from torchvision.models import detection
    from torchvision.ops import batched_nms
except (ImportError, RuntimeError) as error:  # the latter if it does not fit torch
    pytest.skip(f"torchvision cannot be imported: {error}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:.* always returns a .Losses, Detections. tuple")
ROWS = 5
SIDE = 64  # of the model's input
PICTURE = Image.fromarray(noise(96, 128))  # twice as wide as the model's input: half of it


class Padded(nn.Module):
    """A detector of torchvision with rows of a fixed number; see docs/bring-your-own-model.md."""

    def __init__(self, detector: nn.Module, rows: int) -> None:
        super().__init__()
        self.detector = torch.jit.script(detector.eval())
        self.rows = rows

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """See the class."""
        n = x.shape[0]
        boxes, scores = x.new_zeros(n, self.rows, 4), x.new_zeros(n, self.rows)
        kinds = torch.zeros(n, self.rows, dtype=torch.int64, device=x.device)
        count = torch.zeros(n, dtype=torch.int64, device=x.device)
        for index, found in enumerate(self.detector(x.unbind(0))[1]):
            kept = min(self.rows, found["boxes"].shape[0])
            boxes[index, :kept] = found["boxes"][:kept]
            scores[index, :kept] = found["scores"][:kept]
            kinds[index, :kept] = found["labels"][:kept]
            count[index] = kept
        return {"boxes": boxes, "scores": scores, "kinds": kinds, "count": count}


class PaddedWithMasks(nn.Module):
    """The same with the masks of Mask R-CNN, as booleans."""

    def __init__(self, detector: nn.Module, rows: int) -> None:
        super().__init__()
        self.detector = torch.jit.script(detector.eval())
        self.rows = rows

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """See the class."""
        n = x.shape[0]
        boxes, scores = x.new_zeros(n, self.rows, 4), x.new_zeros(n, self.rows)
        masks = torch.zeros(n, self.rows, x.shape[2], x.shape[3], dtype=torch.bool, device=x.device)
        count = torch.zeros(n, dtype=torch.int64, device=x.device)
        for index, found in enumerate(self.detector(x.unbind(0))[1]):
            kept = min(self.rows, found["boxes"].shape[0])
            boxes[index, :kept] = found["boxes"][:kept]
            scores[index, :kept] = found["scores"][:kept]
            masks[index, :kept] = found["masks"][:kept, 0] > 0.5
            count[index] = kept
        return {"boxes": boxes, "scores": scores, "masks": masks, "count": count}


class Raw(nn.Module):
    """A head as YOLO's without NMS: [n, 4 + 3 classes, 64] with boxes in columns."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 7, 8, stride=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        made = self.convolution(x).flatten(2)
        return torch.cat((made[:, :4].sigmoid() * 64, made[:, 4:].sigmoid()), dim=1)


class WithNms(nn.Module):
    """The same with its NMS: [n, 5, 6], rows of left, top, right, bottom, score and class."""

    def __init__(self, raw: nn.Module) -> None:
        super().__init__()
        self.raw = raw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        rows = x.new_zeros(x.shape[0], 5, 6)
        for index, made in enumerate(self.raw(x).unbind(0)):
            boxes = torch.cat((made[:2] - made[2:4] / 2, made[:2] + made[2:4] / 2)).t()
            scores, kinds = made[4:].max(dim=0)
            kept = batched_nms(boxes, scores, kinds, 0.5)[:5]
            found = torch.cat((boxes, scores[:, None], kinds[:, None].to(boxes.dtype)), dim=1)
            rows[index, : kept.shape[0]] = found[kept]
        return rows


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The usual random weights, always the same."""
    torch.manual_seed(7)
    return make()


def spread(make: Callable[[], nn.Module]) -> nn.Module:
    """Random weights whose scores differ clearly, so that no two rows may swap."""
    detector = seeded(make)
    with torch.no_grad():
        for parameter in detector.parameters():
            if parameter.dim() > 1:
                nn.init.kaiming_normal_(parameter)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return detector


FEW: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 3}
SMALL: dict[str, Any] = {
    "min_size": SIDE,
    "max_size": SIDE,
    "box_score_thresh": 0.0,
    "box_detections_per_img": ROWS,
    **FEW,
}
COUNTED = ("--count", "count=boxes,scores,kinds", "--ranked-by", "scores", "--boxes", "boxes=xyxy")
MASKED = (
    *("--count", "count=boxes,scores,masks", "--ranked-by", "scores"),
    *("--boxes", "boxes=xyxy", "--mask", "masks"),
)
RETINA: dict[str, Any] = {"min_size": SIDE, "max_size": SIDE, "score_thresh": 0.0, **FEW}
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(score_thresh=0.0, **FEW),
    "faster_rcnn": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(**SMALL),
    "retinanet": lambda: detection.retinanet_resnet50_fpn(**RETINA),
    "mask_rcnn": lambda: detection.maskrcnn_resnet50_fpn(**SMALL),
}
DETECTORS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "ssdlite": (lambda: Padded(seeded(MAKERS["ssdlite"]), ROWS), COUNTED),
    "faster_rcnn": (lambda: Padded(seeded(MAKERS["faster_rcnn"]), ROWS), COUNTED),
    "retinanet": (lambda: Padded(spread(MAKERS["retinanet"]), ROWS), COUNTED),
    "mask_rcnn": (lambda: PaddedWithMasks(seeded(MAKERS["mask_rcnn"]), ROWS), MASKED),
    "raw": (lambda: spread(Raw), ("--boxes", "output=cxcywh,columns")),
    "with_nms": (lambda: WithNms(spread(Raw)), ("--boxes", "output=xyxy")),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DETECTORS)
async def test_a_detector_is_adopted_and_served(name: str, tmp_path: Path) -> None:
    make, options = DETECTORS[name]
    module = make().eval()
    torch.jit.save(torch.jit.script(module), str(tmp_path / "model.pt"))
    arguments = ["adopt", str(tmp_path / "model.pt"), "--name", name, "--codec", "image"]
    arguments += ["--input", f"float32[-1,3,{SIDE},{SIDE}]", "--out", str(tmp_path / "models")]
    arguments += ["--max-batch-size", "2", *options]
    assert cli.main(arguments, {}) == 0
    manifest = read_artifact(tmp_path / "models" / name / "1", tmp_path / "models")[0]
    assert manifest.variants["script"].operators == (() if name == "raw" else ("torchvision",))
    assert isinstance(manifest.codec, ImageCodecSpec)
    content = encoded(PICTURE)
    array = torch.from_numpy(preprocess(content, manifest.codec.preprocess))
    with torch.inference_mode():
        made = module(array[None])
    made = made if isinstance(made, dict) else {"output": made}
    async with serving(tmp_path / "models", default_model=name) as api:
        body = {"input": base64.b64encode(content).decode()}
        prediction = (await api.client.post("/predict", json=body)).json()["prediction"]
    assert prediction["image"] == {
        "width": 128,
        "height": 96,
        "scale": [0.5, 0.5],
        "offset": [0.0, 8.0],
    }
    found = {each: np.array(value) for each, value in prediction["outputs"].items()}
    count = int(made["count"][0]) if "count" in made else ROWS
    assert count > 0
    if name == "raw":
        columns = made["output"][0].numpy()
        centre = columns[:2] * 2 - [[0], [16]]
        corners = [centre - columns[2:4], centre + columns[2:4]]
        limits = [[128], [96]]
        first, last = (np.clip(each, 0, limits) for each in corners)
        wanted = np.concatenate(((first + last) / 2, last - first))
        np.testing.assert_allclose(found["output"][:4], wanted, atol=1e-2)
        np.testing.assert_allclose(found["output"][4:], columns[4:], atol=1e-5)
        return
    boxes = "boxes" if "boxes" in made else "output"
    rows = made[boxes][0, :count, :4].numpy()
    wanted = np.clip(rows * 2 - [0, 16, 0, 16], 0, [128, 96, 128, 96])
    np.testing.assert_allclose(found[boxes][:, :4], wanted, atol=1e-2)
    if name == "mask_rcnn":
        assert found["masks"].shape == (count, 96, 128)
        mask = made["masks"][0, :count].numpy()[:, 8:56]  # the rest is padding
        np.testing.assert_array_equal(found["masks"], mask.repeat(2, axis=1).repeat(2, axis=2))
