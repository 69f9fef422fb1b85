"""Starts the process of a handler: `python -I start.py NAME SETTINGS`, by the path of this file.

The interpreter may be another one than the server's, without this package: the package is imported
from where this file is. The settings are a JSON object, see `Settings` in launch.py.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _import_torchlane() -> None:
    folder = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location(
        "torchlane", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not the package torchlane")
    package = module_from_spec(spec)
    sys.modules["torchlane"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _import_torchlane()
    from torchlane.handlers.process import main

    main(sys.argv[2])
