"""Versions of the models, good and bad, put into the repository as export does: whole or not."""

from __future__ import annotations

import enum
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.handlers import CODE_FILE
from models.manifest import MANIFEST_FILE
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.chaos.relayed import JOURNAL, write_acting
from tests.chaos.truth import BAD_VERSION, HANDLERS, MODELS, REPEATS, WIDTH, Item, Mark, answer

INPUT = TensorSpec(name="x", dtype="float32", shape=(-1, WIDTH))
_SCRIPTING = (
    threading.Lock()
)  # torch reads the module's source by linecache, which knows no threads
GOLDEN = tuple(Item(number) for number in range(3))


class Oracle(nn.Module):
    """x [n, 3] -> y [n, 3 * repeats], see `truth.answer`; POISON fails the batch, NAN its own row.

    Args:
        model: one of `truth.MODELS`.
        version: that it says it has.
    """

    def __init__(self, model: str, version: int) -> None:
        super().__init__()
        self.constant = float(MODELS[model])
        self.repeats = REPEATS.get(model, 1)
        self.version = float(version)
        self.poison = int(Mark.POISON)
        self.nan = int(Mark.NAN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        number, mark, salt = x[:, 0], x[:, 1], x[:, 2]
        if bool((mark == self.poison).any()):
            raise ValueError("a poisoned item")
        check = 3 * salt + 5 * mark + self.constant
        check = torch.where(mark == self.nan, torch.full_like(check, float("nan")), check)
        once = torch.stack([number, check, torch.full_like(number, self.version)], dim=1)
        return once.repeat(1, self.repeats)


class Damage(enum.Enum):
    """What is wrong with a bad version; none of them may ever answer."""

    ALTERED = "a byte of its file is altered"
    MISSING = "its file is missing"
    WRONG = "it answers its golden examples wrongly"
    MANIFEST = "its manifest is cut off"
    IMPORT = "its code cannot be imported"


OF_MODELS = tuple(each for each in Damage if each is not Damage.IMPORT)


def publish(root: Path, model: str, version: int, damage: Damage | None = None) -> None:
    """Write a version beside the repository, then rename it to where it belongs.

    Args:
        root: the repository.
        model: one of `truth.MODELS`, or of `truth.HANDLERS`.
        version: higher than what is there.
        damage: None makes a good one.
    """
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="publishing-") as draft:
        said = version + BAD_VERSION if damage is not None else version
        if model in HANDLERS:
            journal, imports = root.parent / JOURNAL, damage is not Damage.IMPORT
            folder = write_acting(Path(draft), model, journal, version, said, imports=imports)
        else:
            folder = _oracle(Path(draft), model, version, said, damage)
        if damage is not None:
            _damage(folder, damage)
        (root / model).mkdir(exist_ok=True)
        folder.rename(root / model / str(version))


def _oracle(draft: Path, model: str, version: int, said: int, damage: Damage | None) -> Path:
    """Write a version of a model, which says that it is of another one."""
    width = WIDTH * REPEATS.get(model, 1)
    output = TensorSpec(name="y", dtype="float32", shape=(-1, width))
    examples = [{"x": np.array(each.values(), np.float32)} for each in GOLDEN]
    right = [{"y": np.array(answer(model, version, each), np.float32)} for each in GOLDEN]
    with _SCRIPTING:
        return write_artifact(
            draft,
            model,
            version,
            Oracle(model, said),
            inputs=(INPUT,),
            outputs=(output,),
            golden=examples,
            expected=right if damage in (None, Damage.WRONG) else None,
        )


def _damage(folder: Path, damage: Damage) -> None:
    manifest = folder / MANIFEST_FILE
    (file,) = [each for each in map(folder.joinpath, ("script.pt", CODE_FILE)) if each.exists()]
    if damage is Damage.ALTERED:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage is Damage.MISSING:
        file.unlink()
    elif damage is Damage.MANIFEST:
        manifest.write_bytes(manifest.read_bytes()[:-20])
