"""`BaseHandler`, from which TorchServe's handlers inherit."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchlane.torchserve.context import Context
from torchlane.torchserve.util import list_classes_from_module, load_label_mapping


class BaseHandler:
    """Loads the archive's model, or uses the served one, and runs it on batches.

    Attributes:
        model: the model, or what calls the served one.
        mapping: labels by index; None: the archive has none.
        device: always the CPU: the server has the others.
        initialized: whether `initialize` has ended.
        context: of the batch.
        manifest: of the archive.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: Mapping[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}

    def initialize(self, context: Context) -> None:
        """Load the model and the labels.

        Raises:
            RuntimeError: the archive has no model that can be loaded.
        """
        self.model_yaml_config = context.model_yaml_config
        self.map_location, self.device = "cpu", torch.device("cpu")
        self.manifest = context.manifest
        folder = str(context.system_properties["model_dir"])
        model = self.manifest["model"]
        if "serializedFile" in model:
            self.model_pt_path = os.path.join(folder, model["serializedFile"])
        if context.served_model is not None:
            self.model = context.served_model
        elif model_file := model.get("modelFile"):
            self.model = self._load_pickled_model(folder, model_file, self.model_pt_path)
            self.model.to(self.device).eval()
        elif self.model_pt_path is not None and self.model_pt_path.endswith(".pt"):
            self.model = self._load_torchscript_model(self.model_pt_path)
            self.model.eval()
        else:
            raise RuntimeError(
                f"{model.get('serializedFile', 'the archive')!r} is no model that a handler can "
                "load: adopt it, and export the handler with --model"
            )
        self.mapping = load_label_mapping(os.path.join(folder, "index_to_name.json"))
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        load: Callable[..., Any] = torch.jit.load  # untyped in torch
        return load(model_pt_path, map_location=self.device)

    def _load_pickled_model(
        self, model_dir: str, model_file: str, model_pt_path: str | None
    ) -> Any:
        """The only class of the archive's model file, with its weights.

        Raises:
            ValueError: the file has several classes, or none.
        """
        module = importlib.import_module(model_file.partition(".")[0])
        kinds = list_classes_from_module(module)
        if len(kinds) != 1:
            raise ValueError(f"{model_file} must define one class, the model; got {kinds}")
        model = kinds[0]()
        if model_pt_path:
            weights = torch.load(model_pt_path, map_location=self.device, weights_only=True)
            model.load_state_dict(weights)
        return model

    def preprocess(self, data: Any) -> Any:
        """The batch as a tensor."""
        return torch.as_tensor(data, device=self.device)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """What the model answers to the batch."""
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    def postprocess(self, data: Any) -> Any:
        """A list with one answer for each request."""
        return data.tolist()

    def handle(self, data: Any, context: Context) -> Any:
        """Answer the requests of a batch.

        Args:
            data: of each request a dict of its parameters, such as `body`.
            context: of the batch.

        Returns:
            a list with one answer for each request.
        """
        self.context = context
        return self.postprocess(self.inference(self.preprocess(data)))

    def _is_explain(self) -> bool:
        return False

    def _is_describe(self) -> bool:
        return False

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Explain nothing: requests for explanations do not exist here."""

    def describe_handle(self) -> Any:
        """Describe nothing: such requests do not exist here."""

    def get_device(self) -> Any:
        """The device of the model."""
        return self.device
