"""Boxes and masks in the callers' pictures, in every protocol and from every cache."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image
from torch import nn

from app.api.answering import FEW
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.preprocess import preprocess
from models.places import Boxes
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving
from tests.unit.models.pictures import encoded, exif_data, jpeg

pytestmark = pytest.mark.asyncio(loop_scope="module")
SIDE = 32
X = TensorSpec(name="x", dtype="float32", shape=(-1, 1, SIDE, SIDE))
OUTPUTS = (
    TensorSpec(name="boxes", dtype="float32", shape=(-1, 3, 4), count="found"),
    TensorSpec(name="scores", dtype="float32", shape=(-1, 3), count="found"),
    TensorSpec(name="light", dtype="uint8", shape=(-1, SIDE, SIDE)),
    TensorSpec(name="found", dtype="int64", shape=(-1,)),
)
BOXES = (Boxes(output="boxes", form="xyxy"),)
PNG = {"Content-Type": "image/png"}


class Light(nn.Module):
    """[n, 1, 32, 32] -> the box around the light pixels and a worse one, and which are light."""

    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See the class."""
        light = x[:, 0] > 0.5
        places = torch.arange(32, device=x.device)
        columns, rows = light.any(dim=1), light.any(dim=2)
        left = torch.where(columns, places, 32).amin(dim=1)
        right = torch.where(columns, places + 1, 0).amax(dim=1)
        top = torch.where(rows, places, 32).amin(dim=1)
        bottom = torch.where(rows, places + 1, 0).amax(dim=1)
        box = torch.stack((left, top, right, bottom), dim=1).to(x.dtype)
        boxes = torch.stack((box + 1, box, torch.full_like(box, 9)), dim=1)
        scores = torch.tensor([0.25, 0.75, 0.0], device=x.device).expand(x.shape[0], 3)
        found = torch.full((x.shape[0],), 2, device=x.device)
        return boxes, scores, light.to(torch.uint8), found


class One(Light):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """See `Light`."""
        light = x[:, 0] > 0.5
        return light.to(torch.uint8)


def how(**changes: Any) -> PicturePreprocess:
    fields = {"width": SIDE, "height": SIDE, "channels": 1, "mean": (0.0,), "std": (1.0,)}
    return PicturePreprocess.model_validate({**fields, "interpolation": "nearest", **changes})


def write(
    root: Path, name: str, wanted: PicturePreprocess, *, one: bool = False, declared: bool = True
) -> None:
    codec = ImageCodecSpec(
        preprocess=wanted,
        ranked_by=None if one else "scores",
        boxes=BOXES if declared and not one else (),
        masks=("light",) if declared else (),
    )
    write_artifact(
        *(root, name),
        module=One() if one else Light(),
        inputs=(X,),
        outputs=(OUTPUTS[2],) if one else OUTPUTS,
        codec=codec,
        golden=[{"x": np.eye(SIDE, dtype=np.float32)[None]}],
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(folder, "pad", how(fill=0))
    write(folder, "crop", how(fit="crop", resize_shorter=SIDE))
    write(folder, "one", how(fill=0), one=True)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(models: Path) -> AsyncIterator[Api]:
    async with serving(models, default_model="pad") as api:
        yield api


def picture(width: int, height: int, box: tuple[int, int, int, int]) -> bytes:
    pixels = np.zeros((height, width), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    return encoded(Image.fromarray(pixels))


def light(width: int, height: int, box: tuple[int, int, int, int]) -> list[list[int]]:
    mask = np.zeros((height, width), np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 1
    return mask.tolist()


WIDE = (64, 32), (16, 8, 40, 24)  # half of it is in the model's input, below 8 rows
SMALL = (32, 16), (8, 4, 20, 12)  # the very same input
GEOMETRY = {
    WIDE[0]: {"width": 64, "height": 32, "scale": [0.5, 0.5], "offset": [0.0, 8.0]},
    SMALL[0]: {"width": 32, "height": 16, "scale": [1.0, 1.0], "offset": [0.0, 8.0]},
}


def wanted(case: tuple[tuple[int, int], tuple[int, int, int, int]]) -> dict[str, Any]:
    (width, height), box = case
    by = int(1 / GEOMETRY[case[0]]["scale"][0])  # type: ignore[index]
    return {
        "outputs": {
            "boxes": [list(box), [each + by for each in box]],
            "scores": [0.75, 0.25],
            "light": light(width, height, box),
        },
        "image": GEOMETRY[case[0]],
    }


async def test_one_cached_answer_serves_pictures_of_different_sizes(api: Api) -> None:
    for index, case in enumerate((WIDE, SMALL, WIDE, SMALL, WIDE, SMALL)):
        got = await api.client.post(
            "/predict", content=picture(case[0][0], case[0][1], case[1]), headers=PNG
        )
        assert got.json()["prediction"] == wanted(case)
        assert got.headers["x-torchlane-cache"] == ("hit" if index else "miss")


@pytest.mark.parametrize("count", [3, FEW + 3])  # mapped at once, or in steps
async def test_one_flight_serves_pictures_of_different_sizes(models: Path, count: int) -> None:
    cases = [(WIDE, SMALL)[index % 2] for index in range(count)]
    files = [base64.b64encode(picture(*size, box)).decode() for size, box in cases]
    async with serving(models, default_model="pad") as api:  # with an empty cache
        got = await api.client.post("/batch-predict", json={"inputs": files})
    assert got.json()["predictions"] == [*map(wanted, cases)]
    assert got.headers["x-torchlane-cache"] == f"hit=0, miss=1, joined={count - 1}"


async def test_an_input_without_a_picture_keeps_the_models_pixels(api: Api) -> None:
    data = picture(*WIDE[0], WIDE[1])
    array = preprocess(data, how(fill=0)).tolist()
    body = {"inputs": [base64.b64encode(data).decode(), array]}
    first, second = (await api.client.post("/batch-predict", json=body)).json()["predictions"]
    assert first == wanted(WIDE)
    assert "image" not in second
    assert second["outputs"]["boxes"] == [[8, 12, 20, 20], [9, 13, 21, 21]]
    assert second["outputs"]["light"] == light(SIDE, SIDE, (8, 12, 20, 20))


async def test_what_a_crop_does_not_show_is_in_no_box(api: Api) -> None:
    size, box, seen = (128, 64), (0, 8, 80, 56), (32, 8, 80, 56)
    content = picture(*size, box)
    got = await api.client.post("/models/crop/predict", content=content, headers=PNG)
    prediction = got.json()["prediction"]
    geometry = {"width": 128, "height": 64, "scale": [0.5, 0.5], "offset": [-16.0, 0.0]}
    assert prediction["image"] == geometry
    assert prediction["outputs"]["boxes"][0] == list(seen)
    assert prediction["outputs"]["light"] == light(*size, seen)


async def test_a_turned_photograph_is_answered_upright(api: Api) -> None:
    upright = Image.open(io.BytesIO(picture(*WIDE[0], WIDE[1])))
    turned = jpeg(
        upright.transpose(Image.Transpose.ROTATE_90),
        exif=exif_data("<", (0x0112, 3, 6)),
        quality=100,
    )
    got = await api.client.post("/predict", content=turned, headers={"Content-Type": "image/jpeg"})
    assert got.json()["prediction"] == wanted(WIDE)


@pytest.mark.parametrize("accept", ["application/octet-stream", "application/x-npy"])
async def test_binary_answers_are_in_the_picture_too(api: Api, accept: str) -> None:
    content = picture(*WIDE[0], WIDE[1])
    headers = {**PNG, "Accept": accept}
    for _ in range(3):
        got = await api.client.post("/models/one/predict", content=content, headers=headers)
        octets = np.frombuffer(got.content[-64 * 32 :], np.uint8)
        assert octets.reshape(32, 64).tolist() == light(*WIDE[0], WIDE[1])
    files = [base64.b64encode(picture(*size, box)).decode() for size, box in (WIDE, SMALL)]
    got = await api.client.post(
        "/models/one/batch-predict", json={"inputs": files}, headers={"Accept": accept}
    )
    assert (got.status_code, got.json()["code"]) == (406, "not_acceptable")


async def test_torchserves_call(api: Api) -> None:
    content = picture(*WIDE[0], WIDE[1])
    assert (await api.client.post("/predictions/pad", content=content)).json() == wanted(WIDE)
    got = await api.client.post("/predictions/one", content=content)
    assert got.json() == light(*WIDE[0], WIDE[1])


def infer(*cases: tuple[tuple[int, int], tuple[int, int, int, int]]) -> dict[str, Any]:
    data = [base64.b64encode(picture(*size, box)).decode() for size, box in cases]
    return {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [len(cases)], "data": data}]}


async def test_open_inference_over_rest(api: Api) -> None:
    path = "/v2/models/pad"
    shapes = {
        each["name"]: each["shape"] for each in (await api.client.get(path)).json()["outputs"]
    }
    assert (shapes["boxes"], shapes["light"]) == ([-1, 3, 4], [-1, -1, -1])
    got = (await api.client.post(f"{path}/infer", json=infer(WIDE, WIDE))).json()
    found = {each["name"]: each for each in got["outputs"]}
    assert found["light"]["shape"] == [2, 32, 64]
    assert found["boxes"]["data"][4:12] == [*WIDE[1], 9, 9, 9, 9]  # filler stays
    differ = await api.client.post(f"{path}/infer", json=infer(WIDE, SMALL))
    assert differ.status_code == 400
    assert "differ in shape" in differ.json()["error"]
    only = {**infer(WIDE, SMALL), "outputs": [{"name": "boxes"}]}
    got = (await api.client.post(f"{path}/infer", json=only)).json()
    boxes = np.array(got["outputs"][0]["data"]).reshape(2, 3, 4)
    assert boxes[:, 1].tolist() == [list(WIDE[1]), list(SMALL[1])]


async def test_large_masks_are_made_in_slices_and_bounded(models: Path) -> None:
    size, box = (1600, 800), (400, 200, 1000, 600)
    content = picture(*size, box)
    async with serving(
        models, default_model="pad", max_answer_bytes=size[0] * size[1] + 200
    ) as api:
        got = await api.client.post("/predict", content=content, headers=PNG)
        assert got.json()["prediction"]["outputs"]["light"] == light(*size, box)
        for each, count in ((content, 2), (picture(400, 200, (1, 1, 9, 9)), FEW + 1)):
            body = {"inputs": [base64.b64encode(each).decode()] * count}
            got = await api.client.post("/batch-predict", json=body)
            assert (got.status_code, got.json()["code"]) == (413, "payload_too_large")
            assert "send smaller pictures, or fewer at once" in got.json()["error"]
