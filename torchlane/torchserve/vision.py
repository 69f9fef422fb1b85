"""`VisionHandler`, and the preparation of pictures of the handlers that inherit from it.

Without torchvision, which not every interpreter has; its transforms give the same numbers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from torchlane.torchserve.base import BaseHandler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's: red, green, blue


class Prepared:
    """A picture of Pillow as a tensor [c, h, w] of 0..1, or normalised.

    Args:
        shorter: pixels of its shorter side, before it is cropped; None: it stays as it is.
        crop: pixels of both sides of the middle that is left.
        mean, std: of each channel; empty: it is not normalised.
    """

    def __init__(
        self,
        shorter: int | None = None,
        crop: int = 0,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
    ) -> None:
        self._shorter = shorter
        self._crop = crop
        self._mean = torch.tensor(mean)[:, None, None]
        self._std = torch.tensor(std)[:, None, None]

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        if self._shorter is not None:
            picture = self._cropped(picture, self._shorter)
        pixels = np.array(picture)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        if tensor.dtype == torch.uint8:
            tensor = tensor.to(torch.float32) / 255
        return (tensor - self._mean) / self._std if len(self._mean) else tensor

    def _cropped(self, picture: Image.Image, shorter: int) -> Image.Image:
        width, height = picture.size
        longer = int(shorter * max(width, height) / min(width, height))
        size = (shorter, longer) if width <= height else (longer, shorter)
        picture = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = (round((side - self._crop) / 2) for side in size)
        return picture.crop((left, top, left + self._crop, top + self._crop))


class VisionHandler(BaseHandler):
    """Reads pictures; a subclass has `image_processing`, which makes tensors of them."""

    image_processing: Any = Prepared()

    def preprocess(self, data: Any) -> Any:
        """The pictures of a batch as a tensor [n, c, h, w]: files, files in base64, or numbers."""
        return torch.stack([self._tensor(row.get("data") or row.get("body")) for row in data])

    def _tensor(self, picture: Any) -> Any:
        if isinstance(picture, str):
            picture = base64.b64decode(picture)
        if isinstance(picture, bytes | bytearray):
            return self.image_processing(Image.open(io.BytesIO(picture)))
        return torch.FloatTensor(picture)
