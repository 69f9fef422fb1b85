"""A model from elsewhere becomes a definition with the right answers, or a clear error."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export.adoption.adopt import Adoption
from export.errors import ExportError, UsageError
from export.reading.mar import IMAGE_CLASSIFIER, IMAGENET_MEAN, IMAGENET_STD
from models.codec_specs import ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from models.inputs.preprocess import preprocess
from models.pictured import ImageOutput, MaskOutput
from models.places import Boxes
from tests.unit.export.torchscripts import (
    BRIGHTNESS,
    PICTURE,
    SUMS,
    X3,
    archived,
    run,
    scripted,
    traced,
    written,
)
from tests.unit.models.inputs.test_preprocess_crop import by_hand
from tests.unit.models.pictures import encoded, noise


def answers(adopted: Adoption, *inputs: object) -> list[Any]:
    """What the built model answers to a batch."""
    module = adopted.definition.build()
    return list(module(*(torch.as_tensor(each) for each in inputs)).tolist())


def how(adopted: Adoption) -> PicturePreprocess:
    codec = adopted.definition.codec
    assert isinstance(codec, ImageCodecSpec)
    return codec.preprocess


class TestTorchScript:
    def test_a_traced_file_becomes_a_definition(self, sums: Path) -> None:
        adoption = run(sums, *X3, "--description", "Sums of rows.")
        definition = adoption.definition
        assert (adoption.name, adoption.warnings) == ("sums", ())
        assert definition.description == "Sums of rows."
        assert [(each.name, each.dtype, each.shape) for each in definition.inputs] == [
            ("x", "float32", (-1, 3))
        ]
        assert [(each.name, each.shape) for each in definition.outputs] == [("output", (-1, 2))]
        assert definition.codec == TensorCodecSpec()
        assert definition.train is None
        assert definition.held_out is None
        assert answers(adoption, [[1.0, 2.0, 3.0], [0.5, 0.0, 0.0]]) == [[6, -6], [0.5, -0.5]]

    def test_file_that_changes_meanwhile_is_refused(self, tmp_path: Path) -> None:
        file = written(tmp_path, SUMS)
        adoption = run(file, *X3)
        assert answers(adoption, [[1.0, 1.0, 1.0]]) == [[3, -3]]
        assert adoption.definition.description == "Adopted from model.pt."
        written(tmp_path, BRIGHTNESS)
        with pytest.raises(ExportError, match=r"model\.pt changed while it was adopted"):
            adoption.definition.build()

    def test_golden_inputs_and_example_fit_the_inputs(self, sums: Path) -> None:
        definition = run(sums, *X3).definition
        golden = definition.golden_inputs()
        assert len(golden) > 1
        for item in [*golden, {"x": np.array(definition.example(), np.float32)}]:
            assert item["x"].shape == (3,)
        batch = definition.random_inputs(np.random.default_rng(1), 5)
        assert batch["x"].shape == (5, 3)

    def test_inputs_may_have_names_and_free_dimensions(self, tmp_path: Path) -> None:
        file = written(tmp_path, scripted(Masked()))
        adoption = run(
            file, "--name", "m", "--input", "ids=int64[-1,-1]", "--input", "bool[-1, -1]"
        )
        assert [(each.name, each.dtype) for each in adoption.definition.inputs] == [
            ("ids", "int64"),
            ("mask", "bool"),
        ]
        assert adoption.definition.outputs[0].shape == (-1,)
        assert answers(adoption, [[1, 5, 7]], [[True, False, True]]) == [8]

    @pytest.mark.parametrize(
        ("content", "suffix"),
        [
            ("more\nless\n", "txt"),
            ('["more", "less"]', "json"),
            ('\n {"1": "less", "0": ["n1", "more"]}', "json"),
            ("\ufeffmore\r\nless\r\n", "txt"),
        ],
    )
    def test_labels(self, sums: Path, tmp_path: Path, content: str, suffix: str) -> None:
        labels = written(tmp_path, content.encode(), f"labels.{suffix}")
        adoption = run(sums, *X3, "--labels", labels, "--scores", "softmax")
        assert adoption.definition.codec == TensorCodecSpec(
            labels=("more", "less"), scores="softmax"
        )


class Masked(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (ids * mask.to(torch.int64)).sum(dim=1)


class TestPictures:
    def test_default_preprocessing_pads_and_scales_to_one(self, light: Path) -> None:
        adoption = run(light, *PICTURE)
        assert how(adoption) == PicturePreprocess(
            width=6, height=8, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3
        )

    def test_every_option(self, light: Path) -> None:
        options = "--mean 0.1,0.2,0.3 --std 1,2,3 --polarity auto --fit crop --resize-shorter 9"
        options += " --interpolation bicubic --alpha drop"
        adoption = run(light, *PICTURE, *options.split(), "--scores", "sigmoid", "--top-k", "5")
        assert adoption.definition.codec.scores == "sigmoid"
        assert adoption.definition.codec.top_k == 5
        assert how(adoption) == PicturePreprocess(
            width=6,
            height=8,
            channels=3,
            mean=(0.1, 0.2, 0.3),
            std=(1.0, 2.0, 3.0),
            polarity="auto",
            fit="crop",
            resize_shorter=9,
            interpolation="bicubic",
            alpha="drop",
        )

    @pytest.mark.parametrize(("text", "fill"), [("0", 0), ("114", 114), ("mean", "mean")])
    def test_fill(self, light: Path, text: str, fill: str | int) -> None:
        assert how(run(light, *PICTURE, "--fill", text)).fill == fill

    def test_preprocess_makes_it_a_model_of_pictures(self, light: Path, tmp_path: Path) -> None:
        steps = {"input_size": (3, 30, 30), "interpolation": "bicubic", "crop_pct": 0.9}
        figures = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        file = written(tmp_path, json.dumps(steps | figures).encode(), "steps.json")
        adoption = run(light, "--name", "light", "--preprocess", file, "--std", "1,1,1")
        assert adoption.warnings == ("--std of the command line replaces what steps.json says",)
        assert how(adoption) == PicturePreprocess(
            width=30,
            height=30,
            channels=3,
            mean=IMAGENET_MEAN,
            std=(1, 1, 1),
            fit="crop",
            resize_shorter=33,
            interpolation="bicubic",
        )

    @pytest.mark.parametrize(
        ("options", "mean", "std"),
        [
            ("--mean imagenet", IMAGENET_MEAN, IMAGENET_STD),
            ("--mean imagenet --std 1,1,1", IMAGENET_MEAN, (1, 1, 1)),
            ("--mean 0,0,0 --std imagenet", (0, 0, 0), IMAGENET_STD),
        ],
    )
    def test_imagenet_mean_and_std_go_together(
        self, light: Path, options: str, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        preprocess = how(run(light, *PICTURE, *options.split()))
        assert (preprocess.mean, preprocess.std) == (mean, std)

    def test_a_uint8_input_gets_levels(self, tmp_path: Path) -> None:
        class Levels(nn.Module):
            def forward(self, pixels: torch.Tensor) -> torch.Tensor:
                return pixels.float().mean(dim=(1, 2, 3))[:, None] / 255

        file = written(tmp_path, traced(Levels(), torch.zeros(2, 3, 8, 6, dtype=torch.uint8)))
        options = ("--name", "x", "--input", "pixels=uint8[-1,3,8,6]", "--codec", "image")
        adoption = run(file, *options)
        assert how(adoption).values == "levels"
        assert "--mean" not in str(adoption.warnings)
        example = adoption.definition.example()
        assert isinstance(example, str)
        array = preprocess(base64.b64decode(example), how(adoption))
        assert array.dtype == np.uint8
        assert array.shape == (3, 8, 6)
        np.testing.assert_allclose(
            answers(adoption, array[None]), [[array.mean() / 255]], rtol=1e-5
        )
        for wrong in ("--mean", "--std"):
            with pytest.raises(UsageError, match="a uint8 input gets the levels of 0 to 255"):
                run(file, *options, wrong, "imagenet")

    def test_pictures_of_free_size(self, tmp_path: Path) -> None:
        file = written(tmp_path, BRIGHTNESS)
        options = ("--name", "x", "--codec", "image", "--mean", "0,0,0", "--std", "1,1,1")
        adoption = run(file, *options, "--input", "float32[-1,3,32<=h<=96,32<=w<=128]")
        assert (how(adoption).fit, how(adoption).height, how(adoption).width) == ("none", 96, 128)
        (message,) = adoption.warnings  # no file can state them
        assert message.startswith("pictures are prepared with --alpha white, --polarity light-on-")
        assert message.endswith("state these options")
        example = adoption.definition.example()
        assert isinstance(example, str)
        array = preprocess(base64.b64decode(example), how(adoption))
        assert adoption.definition.inputs[0].takes(array.shape)
        for wrong in (("--fit", "crop"), ("--interpolation", "bicubic"), ("--fill", "0")):
            with pytest.raises(UsageError, match=f"{wrong[0]} is for pictures that are scaled"):
                run(file, *options, "--input", "float32[-1,3,-1,-1]", *wrong)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("", "--fit pad, --interpolation bilinear, --fill border, --mean 0, --std 1, --alpha"),
            ("--mean imagenet --fit crop --alpha drop", "--interpolation bilinear,"),
            (
                (
                    "--mean 0,0,0 --std 1,1,1 --fit pad --interpolation bilinear --fill border "
                    "--alpha white --polarity light-on-dark"
                ),
                None,
            ),
        ],
    )
    def test_defaults_that_nothing_states_are_told(
        self, light: Path, options: str, message: str | None
    ) -> None:
        warnings = run(light, *PICTURE, *options.split()).warnings
        assert [message in each for each in warnings] == [True] if message else not warnings

    @pytest.mark.parametrize(
        ("spec", "options", "message"),
        [
            ("float32[-1,3,8,6]", "", "with --codec image --mean imagenet clients can send"),
            (
                "float32[-1,1,8,6]",
                "",
                "with --codec image clients can send PNG, JPEG",
            ),
            ("float32[-1,3,8,6]", "--codec tensor", None),
            ("float32[-1,3,8,6]", "--codec image", None),
            ("float32[-1,4,8,6]", "", None),
        ],
    )
    def test_picture_shaped_inputs_get_a_hint(
        self, tmp_path: Path, spec: str, options: str, message: str | None
    ) -> None:
        file = written(tmp_path, BRIGHTNESS)
        hint = run(file, "--name", "x", "--input", spec, *options.split()).hint
        assert hint is None if message is None else message in str(hint)

    @pytest.mark.parametrize(("side", "shorter"), [(224, 256), (299, 342), (32, 37)])
    def test_crop_uses_the_customary_resize(self, light: Path, side: int, shorter: int) -> None:
        options = ("--input", f"float32[-1,1,{side},{side}]", *PICTURE[4:], "--fit", "crop")
        adoption = run(light, *PICTURE[:2], *options)
        assert how(adoption).resize_shorter == shorter


class TestArchives:
    def test_of_an_image_classifier(self, tmp_path: Path) -> None:
        """Its answers to a picture equal those of its original server."""
        labels = json.dumps({"0": ["n0", "dark"], "1": ["n1", "light"]}).encode()
        files = {"light.pt": BRIGHTNESS, "index_to_name.json": labels}
        adoption = run(archived(tmp_path, files, "--handler", "image_classifier"))
        assert (adoption.name, adoption.warnings) == ("packed", ())
        assert adoption.definition.description == "Adopted from packed.mar: packed, version 1.0."
        assert adoption.definition.inputs[0].shape == (-1, 3, 224, 224)
        assert adoption.definition.outputs[0].shape == (-1, 2)
        assert adoption.definition.codec.labels == ("dark", "light")
        assert adoption.definition.codec.scores == "softmax"
        picture = Image.fromarray(noise(300, 421))
        array = preprocess(encoded(picture), how(adoption))
        np.testing.assert_array_equal(array, by_hand(picture))
        mean = by_hand(picture).mean()
        np.testing.assert_allclose(answers(adoption, array[None]), [[-mean, mean]], atol=1e-6)

    def test_command_options_override_the_archive(self, tmp_path: Path) -> None:
        files = {"light.pt": BRIGHTNESS, "index_to_name.json": b'["a", "b"]'}
        file = archived(tmp_path, files, "--handler", "image_classifier")
        labels = written(tmp_path, b"night\nday\n", "labels.txt")
        options = "--name mine --input float32[-1,3,8,8] --mean 0,0,0 --fit pad --scores none"
        adoption = run(file, *options.split(), "--labels", labels)
        assert adoption.name == "mine"
        assert adoption.definition.inputs[0].shape == (-1, 3, 8, 8)
        assert adoption.definition.codec.labels == ("night", "day")
        assert adoption.definition.codec.scores == "none"
        assert how(adoption).mean == (0, 0, 0)
        assert how(adoption).std == IMAGE_CLASSIFIER.std
        assert (how(adoption).fit, how(adoption).resize_shorter) == ("pad", None)

    def test_as_tensors(self, tmp_path: Path) -> None:
        file = archived(tmp_path, {"light.pt": BRIGHTNESS}, "--handler", "image_classifier")
        adoption = run(file, "--codec", "tensor")
        assert adoption.definition.codec == TensorCodecSpec(scores="softmax")

    def test_custom_handler_is_not_run(self, tmp_path: Path) -> None:
        (tmp_path / "own.py").write_text("raise SystemExit('this must never run')")
        file = archived(tmp_path, {"sums.pt": SUMS}, "--handler", "own.py")
        adoption = run(file, "--input", "float32[-1,3]")
        assert len(adoption.warnings) == 1
        assert "'own.py' is not run" in adoption.warnings[0]
        assert answers(adoption, [[1.0, 2.0, 3.0]]) == [[6, -6]]


class TestCountedRows:
    OPTIONS = (
        *("--name", "boxes", "--input", "float32[-1,3,8,8]", "--output", "count"),
        *("--output", "boxes", "--output", "scores", "--output", "kinds"),
        *("--count", "count=boxes,scores,kinds", "--ranked-by", "scores", "--threshold", "0.5"),
    )

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return written(tmp_path, scripted(CountFirst()))

    def test_options_reach_the_contract(self, file: Path, tmp_path: Path) -> None:
        labels = written(tmp_path, b"a\nb\n", "labels.txt")
        adoption = run(file, *self.OPTIONS, "--classes", "kinds", "--labels", labels).definition
        assert [(each.name, each.count) for each in adoption.outputs] == [
            *(("boxes", "count"), ("scores", "count"), ("kinds", "count"), ("count", None)),
        ]
        codec = adoption.codec
        assert (codec.ranked_by, codec.threshold, codec.classes) == ("scores", 0.5, "kinds")
        boxes_and_counts = adoption.build()(torch.ones(2, 3, 8, 8))
        assert [list(each.shape) for each in boxes_and_counts] == [[2, 4, 4], [2, 4], [2, 4], [2]]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--classes", "kinds"], "--classes: classes is 'kinds', but there are no labels"),
            (["--count", "count=other"], "'other' is not an output; give COUNT=NAME,NAME with"),
            (["--count", "kinds=boxes"], "--count: 'boxes' has two counts, 'count' and 'kinds';"),
        ],
    )
    def test_wrong_options_are_refused(self, file: Path, options: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            run(file, *self.OPTIONS, *options)


class TestOutputsThatArePictures:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return written(tmp_path, scripted(Restored()))

    OPTIONS = ("--name", "restored", "--input", "float32[-1,3,8,8]")
    NAMES = ("--output", "picture", "--output", "classes", "--output", "scores")

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["--as", "image"], {"picture": ImageOutput()}),
            (
                ["--as", "picture=image in -1..1.5", "--as", "classes=mask"],
                {"picture": ImageOutput(range=(-1, 1.5)), "classes": MaskOutput()},
            ),
            (["--as", "scores = mask"], None),
            (["--as", "scores=mask"], {"scores": MaskOutput()}),
        ],
    )
    def test_options_reach_the_contract(
        self, file: Path, options: list[str], expected: dict[str, object] | None
    ) -> None:
        if expected is None:
            with pytest.raises(UsageError, match="'scores ' is not an output"):
                run(file, *self.OPTIONS, *self.NAMES, *options)
            return
        adoption = run(file, *self.OPTIONS, *self.NAMES, *options).definition
        assert {each.name: each.picture for each in adoption.outputs if each.picture} == expected

    def test_palette(self, file: Path, tmp_path: Path) -> None:
        palette = written(tmp_path, b"#000000 nothing\r\n#FF8000 a road\n\n", "palette.txt")
        options = (*self.OPTIONS, *self.NAMES, "--as", "scores=mask", "--palette", palette)
        form = run(file, *options).definition.outputs[2].picture
        expected = MaskOutput(palette=("#000000", "#ff8000"), classes=("nothing", "a road"))
        assert form == expected

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--as", "video"], "--as 'video': expected .*such as image, 'restored=image in"),
            (["--as", "image in 1..1"], "range 1..1 is empty"),
            (["--as", "other=image"], "'other' is not an output; these are: picture, classes"),
            (["--as", "image", "--as", "picture=image"], "'picture' is declared twice"),
            (["--as", "mask"], "'picture': the palette has 2 entries for 3 classes"),
            (["--as", "image"], "--palette is for one output with --as mask, got 0"),
        ],
    )
    def test_wrong_options_are_refused(
        self, file: Path, tmp_path: Path, options: list[str], message: str
    ) -> None:
        more: tuple[str | Path, ...] = ()
        if "palette" in message:
            more = ("--palette", written(tmp_path, b"#000000\n#ffffff\n", "palette.txt"))
        with pytest.raises(UsageError, match=message):
            run(file, *self.OPTIONS, *self.NAMES, *options, *more)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"", "has 0 lines"),
            (b"#000000\n" * 257, "has 257 lines"),
            (b"red\n", "must be a colour"),
            (b"#000000 a\n#ffffff\n", "all or no lines must have the name"),
            (b"#000000 \xff\n", "is not UTF-8"),
        ],
    )
    def test_a_malformed_palette(
        self, file: Path, tmp_path: Path, text: bytes, message: str
    ) -> None:
        palette = written(tmp_path, text, "palette.txt")
        with pytest.raises(UsageError, match=message):
            run(file, *self.OPTIONS, *self.NAMES, "--as", "scores=mask", "--palette", palette)


class TestPlaces:
    OPTIONS = (*TestCountedRows.OPTIONS, "--codec", "image")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return written(tmp_path, scripted(CountFirst()))

    def test_options_reach_the_contract(self, file: Path) -> None:
        codec = run(file, *self.OPTIONS, "--boxes", "boxes=cxcywh,relative").definition.codec
        assert isinstance(codec, ImageCodecSpec)
        assert codec.boxes == (Boxes(output="boxes", form="cxcywh", relative=True),)
        codec = run(file, *self.OPTIONS, "--mask", "boxes").definition.codec
        assert isinstance(codec, ImageCodecSpec)
        assert codec.masks == ("boxes",)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--boxes", "boxes=yxyx"], "must be NAME=FORM with a FORM of xyxy, xywh, cxcywh, xy"),
            (["--boxes", "boxes"], "--boxes 'boxes': must be NAME=FORM"),
            (["--boxes", "boxes=xyxy,absolute"], "perhaps with ,relative or ,columns"),
            (["--boxes", "other=xyxy"], "--boxes, --mask: 'other' is not an output; the model has"),
            (
                ["--fit", "none", "--boxes", "boxes=xyxy"],
                "so leave them out, and let the model return",
            ),
            (["--fit", "none", "--mask", "boxes"], "--boxes and --mask are for pictures that are"),
            (["--codec", "tensor", "--mask", "boxes"], "--mask is for pictures: add --codec image"),
        ],
    )
    def test_wrong_options_are_refused(self, file: Path, options: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=re.escape(message)):
            run(file, *self.OPTIONS, *options)


class Restored(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x, x.argmax(dim=1), x[:, :2]


class CountFirst(nn.Module):
    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        n = x.shape[0]
        scores = x.mean(dim=(1, 2, 3)).unsqueeze(1).expand(n, 4).contiguous()
        boxes = torch.ones(n, 4, 4)
        return (scores > 0).sum(dim=1), boxes, scores, torch.zeros(n, 4, dtype=torch.int64)
