"""Weights from what trainers write: where they are found, and what is refused."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import UsageError
from export.reading import weights


class Net(nn.Module):
    """Two layers and a buffer."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.front = nn.Linear(2, 2)
        self.head = nn.Linear(2, outputs)
        self.register_buffer("mean", torch.zeros(2))


class Tied(nn.Module):
    """One weight under two names, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.words.weight


class Settings(dict[str, object]):
    """As libraries derive their settings from dict."""


class Touches:
    """Runs code when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (touch, (self.file,))


def touch(file: Path) -> None:
    file.touch()


def state(value: float = 1.0, prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        prefix + name: torch.full_like(each, value) for name, each in Net().state_dict().items()
    }


def loaded(file: Path, module: nn.Module | None = None, at: str | None = None) -> tuple[Any, str]:
    module = Net() if module is None else module
    message = weights.load(weights.read(file), file, module, at)
    return module, message


def refused(file: Path, at: str | None = None) -> str:
    with pytest.raises(UsageError) as raised:
        loaded(file, at=at)
    return str(raised.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


class TestFound:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (state(), "weights.pt"),
            ({"state_dict": state(), "epoch": 3}, "state_dict of weights.pt"),
            ({"model": state(), "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, "model of"),
            ({"nets": {"generator": state()}}, "nets.generator of weights.pt"),
            (state(prefix="module."), "weights.pt, names without 'module.'"),
            (state(prefix="module.model.net."), "names without 'module.model.net.'"),
            (state(prefix="model._orig_mod."), "names without 'model.'"),
            (
                {name.replace("head.", "head._orig_mod."): v for name, v in state().items()},
                "weights.pt",
            ),
            ({**state(prefix="model."), "loss.weight": torch.ones(3)}, "names without 'model.',"),
        ],
    )
    def test_where_trainers_put_them(self, file: Path, content: object, message: str) -> None:
        torch.save(content, file)
        module, said = loaded(file)
        assert message in said
        assert all(bool((each == 1).all()) for each in module.state_dict().values())

    @pytest.mark.parametrize(
        "value",
        [
            argparse.Namespace(lr=0.1),
            Settings(lr=0.1),
            Path("/data"),
            np.float64(0.5),
            np.arange(3),
            functools.partial(print, 1),
            torch.optim.SGD,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_other_objects_of_a_checkpoint_are_left_out(self, file: Path, value: object) -> None:
        torch.save({"hyper_parameters": value, "state_dict": state()}, file)
        assert loaded(file)[1] == "state_dict of weights.pt"

    def test_no_code_of_a_checkpoint_runs(self, tmp_path: Path, file: Path) -> None:
        torch.save({"other": Touches(tmp_path / "ran"), "state_dict": state()}, file)
        assert loaded(file)[1] == "state_dict of weights.pt"
        assert not (tmp_path / "ran").exists()

    def test_a_checkpoint_of_lightning(self, tmp_path: Path) -> None:
        lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

        class Learns(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self, settings: argparse.Namespace) -> None:
                super().__init__()
                self.save_hyperparameters()
                self.model = Net()

        quiet = dict.fromkeys(
            ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
        )
        trainer = lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet)
        learns = Learns(argparse.Namespace(lr=0.1))
        trainer.strategy.connect(learns)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        module, message = loaded(tmp_path / "last.ckpt")
        assert message == "state_dict of last.ckpt, names without 'model.'"
        for name, each in module.state_dict().items():
            assert torch.equal(each, learns.model.state_dict()[name])

    @pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
    def test_safetensors_whatever_their_name(self, tmp_path: Path, suffix: str) -> None:
        save = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
        file = tmp_path / f"model{suffix}"
        save.save_file(state(), file)
        module, _ = loaded(file)
        assert all(bool((each == 1).all()) for each in module.state_dict().values())

    def test_a_tied_weight_needs_one_name(self, file: Path) -> None:
        torch.save({"words.weight": torch.ones(4, 2)}, file)
        module, _ = loaded(file, Tied())
        assert torch.equal(module.head.weight, torch.ones(4, 2))

    def test_a_file_of_old_torch(self, file: Path) -> None:
        torch.save(state(), file, _use_new_zipfile_serialization=False)
        assert loaded(file)[1] == "weights.pt"

    def test_a_key_chooses_among_several(self, file: Path) -> None:
        torch.save({"state_dict": state(1), "state_dict_ema": state(2)}, file)
        assert "several weights that fit (state_dict, state_dict_ema): choose with" in refused(file)
        module, message = loaded(file, at="state_dict_ema")
        assert message == "state_dict_ema of weights.pt"
        assert module.mean.tolist() == [2, 2]
        assert "has no weights there; it has: state_dict, state_dict_ema" in refused(file, "ema")

    @pytest.mark.parametrize("at", ["", "state_dict"])
    def test_a_key_chooses_among_several_prefixes(self, file: Path, at: str) -> None:
        both = {**state(1, "model."), **state(2, "ema.module.")}
        torch.save({at: both} if at else both, file)
        model, ema = (".".join(filter(None, (at, name))) for name in ("model", "ema.module"))
        assert f"several weights that fit ({model}, {ema}): choose with" in refused(file)
        module, message = loaded(file, at=ema)
        assert "names without 'ema.module.', without model.mean" in message
        assert module.mean.tolist() == [2, 2]


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (torch.ones(2), "has no weights by name, but a Tensor: save only the weights"),
            ({}, "has no weights by name"),
            (Path("a"), "is a whole object, whose code would be needed: save only"),
            ({"other": torch.ones(2)}, "weights.pt: does not fit the model: it lacks 5 of 5"),
            (
                {"state_dict": Net(4).state_dict(), "ema": {"x": torch.ones(1)}},
                (
                    "state_dict of weights.pt: does not fit the model: head.weight is [4, 2] "
                    "in the file and [3, 2] in the model, head.bias is [4]"
                ),
            ),
            ({**state(), "extra.weight": torch.ones(1)}, "the model has no extra.weight"),
            (
                {name: each for name, each in state(prefix="model.").items() if "bias" not in name},
                (
                    "names without 'model.': does not fit the model: it lacks 2 of 5 tensors "
                    "(front.bias, head.bias)"
                ),
            ),
        ],
    )
    def test_what_does_not_fit(self, file: Path, content: object, message: str) -> None:
        torch.save(content, file)
        assert message in refused(file)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "No such file or directory"),
            (b"", "is not a checkpoint, or is damaged"),
            (b"PK\x03\x04" + bytes(99), "damaged"),
            (b"\x08" + bytes(7) + b"{garbage", "is a damaged safetensors file"),
        ],
    )
    def test_files_that_cannot_be_read(
        self, file: Path, content: bytes | None, message: str
    ) -> None:
        if content is not None:
            file.write_bytes(content)
        assert message in refused(file)

    def test_a_cut_checkpoint(self, file: Path) -> None:
        torch.save(state(), file)
        whole = file.read_bytes()
        for part in (10, len(whole) // 2, len(whole) - 30):
            file.write_bytes(whole[:part])
            assert "is not a checkpoint, or is damaged" in refused(file)

    def test_nothing_is_loaded_if_it_does_not_fit(self, file: Path) -> None:
        torch.save({**state(), "head.bias": torch.ones(9)}, file)
        module = Net()
        before = {name: each.clone() for name, each in module.state_dict().items()}
        with pytest.raises(UsageError):
            loaded(file, module)
        assert all(torch.equal(each, before[n]) for n, each in module.state_dict().items())
