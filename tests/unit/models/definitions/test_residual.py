"""The residual network: its size, and that it is the same each time."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

from models.definitions.residual import DEFINITION, PREPROCESS
from models.inputs.preprocess import preprocess


def test_parameters_match_the_published_network() -> None:
    state = DEFINITION.build().state_dict()
    trained = [name for name in state if name.endswith((".weight", ".bias"))]
    assert sum(state[name].numel() for name in trained) == 25_557_032
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer3.5.conv2.weight"].shape == (256, 256, 3, 3)
    assert state["layer4.0.downsample.0.weight"].shape == (2048, 1024, 1, 1)
    assert state["layer1.0.downsample.1.running_var"].shape == (256,)
    assert state["fc.weight"].shape == (1000, 2048)
    assert not any("layer2.1.downsample" in name for name in state)


def test_answers_differ_by_picture_within_bounds() -> None:
    module = DEFINITION.build()
    golden = np.stack([item["image"] for item in DEFINITION.golden_inputs()])
    with torch.inference_mode():
        logits = module(torch.from_numpy(golden))
    assert logits.shape == (2, 1000)
    assert 0.01 < logits.std() < 100
    assert (logits[0] - logits[1]).abs().max() > 0.01


def test_build_is_reproducible_and_keeps_rng_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two = (DEFINITION.build().state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_random_inputs_resemble_preprocessed_pictures() -> None:
    drawn = DEFINITION.random_inputs(np.random.default_rng(1), 2)["image"]
    assert drawn.shape == (2, 3, 224, 224)
    assert drawn.dtype == np.float32
    assert drawn.flags.c_contiguous
    picture = Image.open(io.BytesIO(base64.b64decode(str(DEFINITION.example()))))
    made = preprocess(picture, PREPROCESS)
    assert abs(drawn.min() - made.min()) < 1
    assert abs(drawn.max() - made.max()) < 1
