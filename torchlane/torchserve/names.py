"""Lets Python files import TorchServe's modules, `ts`, by their own names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

HERE = "torchlane.torchserve"
PACKAGES = frozenset(
    ("ts", "ts.handler_utils", "ts.metrics", "ts.protocol", "ts.torch_handler", "ts.utils")
)
MODULES: Mapping[str, str] = {
    "ts.context": "context",
    "ts.handler_utils.timer": "util",
    "ts.handler_utils.text_utils": "text",
    "ts.handler_utils.utils": "util",
    "ts.metrics.dimension": "metrics",
    "ts.metrics.metric_type_enum": "metrics",
    "ts.protocol.otf_message_handler": "util",
    "ts.torch_handler.base_handler": "base",
    "ts.torch_handler.image_classifier": "image_classifier",
    "ts.torch_handler.image_segmenter": "image_segmenter",
    "ts.torch_handler.object_detector": "object_detector",
    "ts.torch_handler.text_classifier": "text_classifier",
    "ts.torch_handler.text_handler": "text",
    "ts.torch_handler.vision_handler": "vision",
    "ts.utils.util": "util",
}


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if spec.name in PACKAGES:
            return None
        return importlib.import_module(f"{HERE}.{MODULES[spec.name]}")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is a module that was executed, or an empty package."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in PACKAGES or name in MODULES:
            return ModuleSpec(name, _Loader(), is_package=name in PACKAGES)
        if name.startswith("ts."):
            raise ModuleNotFoundError(
                f"{name} is not among the modules of TorchServe that Torchlane has: "
                f"{', '.join(MODULES)}",
                name=name,
            )
        return None


def install() -> None:
    """Make the names importable, before an installed TorchServe."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
