"""What archives import as `ts`, and the served model in place of theirs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchlane.torchserve.names import MODULES, _Finder, install
from torchlane.torchserve.served import ServedModel
from torchlane.torchserve.text import TextHandler, ngrams_iterator
from torchlane.torchserve.util import load_label_mapping, map_class_to_label
from torchlane.torchserve.vision import MEAN, STD, Prepared


@pytest.fixture
def names() -> Iterator[None]:
    install()
    yield
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _Finder)]
    for name in [name for name in sys.modules if name == "ts" or name.startswith("ts.")]:
        del sys.modules[name]


def test_every_name_can_be_imported(names: None) -> None:
    for name, module in MODULES.items():
        assert importlib.import_module(name).__name__ == f"torchlane.torchserve.{module}"
    install()
    assert sum(isinstance(each, _Finder) for each in sys.meta_path) == 1


def test_another_name_says_what_there_is(names: None) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"ts\.launcher is not among .*ts\.context"):
        importlib.import_module("ts.launcher")


def served(
    inputs: Sequence[str], outputs: Sequence[str], *, is_tensor: bool = True
) -> tuple[ServedModel, list[Any]]:
    """A model whose outputs are the sums of an item's arrays, and the items that it got."""
    calls: list[Any] = []

    def call(items: Sequence[Any]) -> list[dict[str, Any]]:
        calls.extend(items)
        sums = [sum(map(np.sum, i.values())) if isinstance(i, dict) else i.sum() for i in items]
        return [{name: np.full(2, each) for name in outputs} for each in sums]

    return ServedModel("net", call, inputs, outputs, is_tensor), calls


def test_a_served_model_is_called_with_each_item() -> None:
    model, calls = served(["x"], ["y"])
    answer = model.eval().to("cpu")(torch.ones(3, 2, requires_grad=True))
    assert [each.tolist() for each in calls] == [[1, 1]] * 3
    assert answer.tolist() == [[2, 2]] * 3


def test_inputs_go_by_place_and_name_and_outputs_too() -> None:
    model, calls = served(["ids", "mask"], ["logits", "state"], is_tensor=False)
    answer = model(torch.ones(2, 4), mask=torch.zeros(2, 4), labels=None)
    assert [sorted(each) for each in calls] == [["ids", "mask"]] * 2
    assert answer[0] is answer["logits"] is answer.logits
    first, second = answer
    assert first.tolist() == second.tolist() == [[4, 4], [4, 4]]
    alone, _ = served(["x"], ["out"], is_tensor=False)
    assert alone(torch.ones(1, 1))["out"].tolist() == [[1, 1]]
    with pytest.raises(KeyError, match="is no output of the served model: logits, state"):
        answer["loss"]
    with pytest.raises(AttributeError, match="has no output 'loss'"):
        answer.loss  # noqa: B018 # it raises


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "takes ids, mask, got "),
        ((torch.ones(1),) * 3, {}, "got 3 tensors"),
        ((torch.ones(1),), {"other": torch.ones(1)}, "got ids, other"),
        (([1], torch.ones(1)), {}, "ids of the served model net must be a tensor"),
        ((torch.tensor(1), torch.ones(1)), {}, "with the batch at axis 0"),
        ((torch.ones(1), torch.ones(2)), {}, r"one and the same batch at axis 0, got \[1, 2\]"),
        ((torch.ones(0), torch.ones(0)), {}, "the same batch"),
    ],
)
def test_other_inputs_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any], told: str) -> None:
    model, _ = served(["ids", "mask"], ["y"])
    with pytest.raises((TypeError, ValueError), match=told):
        model(*args, **kwargs)


def test_what_a_served_model_lacks_is_said() -> None:
    model, _ = served(["x"], ["y"])
    with pytest.raises(AttributeError, match=r"has no 'state_dict'; export .* without --model"):
        model.state_dict()


def test_pictures_are_prepared_as_torchvision_does() -> None:
    values = np.arange(40 * 30 * 3, dtype=np.uint8).reshape(40, 30, 3)
    picture = Image.fromarray(values)
    assert torch.equal(
        Prepared()(picture), torch.from_numpy(values.transpose(2, 0, 1).copy()) / 255
    )
    grey = Prepared()(picture.convert("L"))
    assert grey.shape == (1, 40, 30)
    middle = picture.resize((256, 341), Image.Resampling.BILINEAR).crop((16, 58, 240, 282))
    pixels = torch.from_numpy(np.array(middle).transpose(2, 0, 1).copy()) / 255
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    assert torch.equal(Prepared(256, 224, MEAN, STD)(picture), (pixels - mean) / std)


def test_texts_are_cleaned_as_torchserve_does() -> None:
    handler = TextHandler()
    clean = handler._expand_contractions("she'd can't couldn't've y'all're o'clock the dog's")
    assert clean == "she would cannot could notve you allre of the clock the dogs"
    assert handler._remove_html_tags("<b>a</b>&amp;c") == "ac"
    assert handler._remove_accented_characters("naïve") == "naive"
    assert handler._tokenize('It\'s "so," she said; <br /> (ok)') == [
        *("it", "'", "s", "so", ",", "she", "said", "(", "ok", ")")
    ]
    assert [*ngrams_iterator(["here", "we", "are"], 2)] == [
        *("here", "we", "are", "here we", "we are")
    ]


def test_labels(tmp_path: Any) -> None:
    file = tmp_path / "index_to_name.json"
    assert load_label_mapping(str(file)) is None
    for text, labels in (
        ('{"0": ["n1", "cat"], "1": "dog"}', {"0": "cat", "1": "dog"}),
        ('{"object_type_names": ["cat", "dog"]}', {"0": "cat", "1": "dog"}),
    ):
        file.write_text(text)
        assert load_label_mapping(str(file)) == labels
    file.write_text("[1]")
    with pytest.raises(ValueError, match="an object index -> label"):
        load_label_mapping(str(file))
    assert map_class_to_label([[0.9, 0.1]], {"0": "cat", "1": "dog"}, [[1, 0]]) == [
        {"dog": 0.9, "cat": 0.1}
    ]
    assert map_class_to_label([[0.9, 0.1]]) == [{"0": 0.9, "1": 0.1}]
