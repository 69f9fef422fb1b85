"""Builds the definition of a model of pictures in Hugging Face's format."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from export.probing.samples import SEED, Samples, draw
from export.reading import preprocessing
from export.reading.codecs import first_of
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.definitions.definition import Definition
from models.definitions.huggingface.definition import labels_of
from models.definitions.huggingface.encoder import (
    EncoderOptions,
    architecture,
    class_of,
    load_encoder,
)
from models.definitions.huggingface.folder import FolderError, ModelFolder, cause
from models.definitions.huggingface.towers import Answer, PictureModel
from models.runtimes.forms import input_tensors
from models.tensors import TensorSpec

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
CLASSIFIER, ENCODER = "AutoModelForImageClassification", "AutoModel"
INPUT = "pixel_values"


def takes_pictures(config: Any, options: EncoderOptions) -> bool:
    """Whether a folder's model, or the wanted tower of it, takes pictures."""
    if options.tower is not None:
        return options.tower == "vision"
    if options.task == "classify" and class_of(CLASSIFIER, config) is not None:
        return "Sequence" not in architecture(config)
    return getattr(class_of(ENCODER, config), "main_input_name", None) == INPUT


def picture_definition(
    folder: ModelFolder, config: Any, options: EncoderOptions, description: str
) -> Definition:
    """Build the definition of a classifier or an encoder of pictures, or of a vision tower.

    Args:
        folder: with config.json, safetensors and the configuration of its image processor.
        config: of the model.
        options: the model's task and options.
        description: one sentence.

    Raises:
        FolderError: if something is missing or broken, or does not fit the task.
    """
    if options.task not in ("embed", "classify"):
        raise FolderError(
            f"{architecture(config) or 'the model'} takes pictures: give --task embed or classify"
        )
    if options.max_tokens is not None or options.pooling == "last":
        option = "--pooling last" if options.max_tokens is None else "--max-tokens"
        raise FolderError(f"{option} is for texts, and the model takes pictures")
    how = _preprocess(folder)
    weights = folder.weights(allow_pickle=options.allow_pickle)
    module = _module(config, weights, options)
    inputs = (TensorSpec(name=INPUT, dtype="float32", shape=(-1, 3, how.height, how.width)),)
    codec = ImageCodecSpec(preprocess=how)
    samples = Samples(inputs, codec, ((inputs[0].item_shape,),))
    batch = draw(inputs, codec, np.random.default_rng(SEED), 1, samples.shapes[0])
    try:
        with torch.inference_mode():
            output = module(*input_tensors(batch, inputs))
    except Exception as error:
        raise FolderError(
            f"the model fails on a picture of {how.width} x {how.height} pixels: {cause(error)}"
        ) from error
    name = "embedding" if options.task == "embed" else "scores"
    if options.task == "classify":
        labels, scores = labels_of(config, output.shape[-1])
        codec = codec.model_copy(update={"labels": labels, "scores": scores})
    return Definition(
        description=description,
        inputs=inputs,
        outputs=(TensorSpec(name=name, dtype="float32", shape=(-1, output.shape[-1])),),
        codec=codec,
        build=lambda: module,
        train=None,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=samples.example,
    )


def _module(config: Any, weights: dict[str, torch.Tensor], options: EncoderOptions) -> nn.Module:
    name = CLASSIFIER if options.task == "classify" else ENCODER
    model, has_pooler = load_encoder(name, config, weights, options.task)
    if options.task == "classify":
        return PictureModel(model, "logits", normalize=False).eval()
    answer: Answer = "features"
    if options.tower is None:
        answer = "pooler" if has_pooler else "cls"
        if options.pooling is not None:
            answer = "cls" if options.pooling == "cls" else "mean"
    return PictureModel(model, answer, normalize=options.normalize is not False).eval()


def _preprocess(folder: ModelFolder) -> PicturePreprocess:
    """Return what the image processor of the folder does."""
    name, fields = PREPROCESSOR, folder.fields(PREPROCESSOR)
    if not fields:
        name, fields = PROCESSOR, folder.fields(PROCESSOR).get("image_processor") or {}
    if not fields:
        raise FolderError(
            f"there is no {PREPROCESSOR}, which says how pictures are prepared: "
            "AutoImageProcessor.from_pretrained(MODEL).save_pretrained(FOLDER) writes it"
        )
    try:
        steps = preprocessing.of_huggingface(fields, name)
    except preprocessing.UnsupportedPreprocessing as error:
        raise FolderError(error.reason) from error
    settings = {"image_mean": steps.mean, "image_std": steps.std, "resample": steps.interpolation}
    if missing := [key for key, value in settings.items() if value is None]:
        raise FolderError(f"{name} has no {missing[0]!r}, whose default depends on the library")
    try:
        return PicturePreprocess.model_validate(
            {
                "width": steps.width,
                "height": steps.height,
                "channels": 3,
                "mean": steps.mean,
                "std": steps.std,
                "fit": steps.fit,
                "resize_shorter": steps.resize_shorter,
                "interpolation": steps.interpolation,
                "alpha": "drop",  # as the library's pipelines do
                "crop_corner": steps.crop_corner,
            }
        )
    except ValidationError as error:
        raise FolderError(f"{name}: {first_of(error)}") from error
