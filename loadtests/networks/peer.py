"""What a user would write: FastAPI around ONNX Runtime, and Pillow for pictures.

One thread an inference, as many inferences at the same time as FastAPI's thread pool lets through.
"""

import io
import os
from typing import Annotated, Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import Body, FastAPI
from PIL import Image
from pydantic import BaseModel

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["NETWORK"], options, ["CPUExecutionProvider"])
names = [each.name for each in session.get_inputs()]
app = FastAPI()


class Text(BaseModel):
    """One text: its tokens and their mask."""

    ids: list[int]
    mask: list[int]


@app.post("/numbers")
def numbers(body: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Any:
    batch = np.frombuffer(body, np.float32).reshape(1, 3, 224, 224)
    return {"scores": session.run(None, {names[0]: batch})[0][0].tolist()}


@app.post("/picture")
def picture(body: Annotated[bytes, Body(media_type="image/jpeg")]) -> Any:
    """Classify a picture: the five best classes."""
    image = Image.open(io.BytesIO(body)).convert("RGB")
    width, height = (round(side * 256 / min(image.size)) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    image = image.crop((left, top, left + 224, top + 224))
    array = (np.asarray(image, np.float32) / 255 - MEAN) / STD
    logits = session.run(None, {names[0]: array.transpose(2, 0, 1)[None]})[0][0]
    scores = np.exp(logits - logits.max())
    scores /= scores.sum()
    best = np.argsort(-scores)[:5]
    return {"classes": [f"class {at}" for at in best], "scores": scores[best].tolist()}


@app.post("/text")
def text(body: Text) -> Any:
    inputs = dict(zip(names, (np.array([body.ids]), np.array([body.mask])), strict=True))
    return {"scores": session.run(None, inputs)[0][0].tolist()}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), access_log=False)
