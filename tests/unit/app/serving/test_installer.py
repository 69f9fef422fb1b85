"""Where a model is installed: on every replica, or in stages over several devices."""

from __future__ import annotations

import pytest

from app.backends.selection import Selection
from app.engine.replica import Replica
from app.serving.installation import places_of
from app.types import Device
from models.plan import Form
from tests.unit.models.manifests import CLOSE, make_variant


def selection(stages: int) -> Selection:
    variant = make_variant("stage1.pt").model_copy(
        update={"later_stages": tuple(f"stage{n}.pt" for n in range(2, stages + 1))}
    )
    return Selection("plan:float32", None, "float32", {Form(variant="v"): variant}, CLOSE)


def replicas(names: str) -> list[Replica]:
    """Of `c 0 0 1` the first is on the CPU, two on the first GPU, and one on the second."""
    devices = [Device("cpu") if n == "c" else Device("cuda", int(n)) for n in names.split()]
    return [Replica(str(number), device) for number, device in enumerate(devices)]


@pytest.mark.parametrize(
    ("stages", "devices", "places"),
    [
        (1, "c c", {"0": "c", "1": "c"}),
        (2, "c c", {"0": "c c"}),
        (2, "c c c c c", {"0": "c c", "2": "c c"}),
        (2, "0 1", {"0": "0 1"}),
        (2, "0 0 1 1", {"0": "0 1", "1": "0 1"}),  # not two stages on one GPU
        (2, "0 0", {"0": "0", "1": "0"}),  # all stages in turn
        (3, "0 1", {"0": "0", "1": "1"}),
        (2, "0 c", {"0": "0 c"}),
        (3, "0 1 2 0 1 2", {"0": "0 1 2", "3": "0 1 2"}),
    ],
)
def test_stages_are_placed_on_devices(stages: int, devices: str, places: dict[str, str]) -> None:
    found = places_of(selection(stages), replicas(devices))
    told = {
        name: " ".join("c" if each.kind == "cpu" else str(each.index) for each in used)
        for name, used in found.items()
    }
    assert told == places
