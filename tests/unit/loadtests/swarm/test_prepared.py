"""Another process knows the same right answers without asking, or says why it does not."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest

from loadtests.swarm.prepared import Prepared, from_message, prepare
from loadtests.traffic.target import TargetError
from loadtests.traffic.workloads import workload
from tests.unit.loadtests.traffic.fake_server import (
    LABELLED,
    LABELS,
    PICTURE,
    PICTURES,
    FakeServer,
    listening,
)

LENGTHS = (
    {"name": "ids", "dtype": "int64", "shape": [-1, -1]},
    {"name": "mask", "dtype": "float32", "shape": [-1, -1]},
)
FAKES = {
    "labelled": FakeServer(codec=LABELLED),
    "pictures": FakeServer(
        inputs=PICTURE, codec=PICTURES | {"labels": LABELS, "scores": "softmax"}
    ),
    "second try": FakeServer(inputs=LENGTHS, aligned=True),
}


def handed_over(prepared: Prepared) -> Prepared:
    """As Locust carries messages from process to process."""
    return from_message(msgpack.loads(msgpack.dumps(prepared.message), raw=False))


@pytest.mark.parametrize("name", FAKES)
def test_worker_loads_and_judges_like_its_master(name: str) -> None:
    fake = FAKES[name]
    with listening(fake) as url:
        prepared = prepare(url, None)
        asked = len(fake.bodies)
        received = handed_over(prepared)
        assert len(fake.bodies) == asked > 0
    ours, theirs = (
        workload("mixed", each.target, 3, each.references) for each in (prepared, received)
    )
    for _ in range(100):
        call, same = ours.draw(), theirs.draw()
        assert (call.path, call.body) == (same.path, same.body)
        reply = fake.post(same.path, same.headers, same.body)
        assert same.expected.problem(reply.status, reply.headers, reply.body) is None
        # A status that is right for no call.
        assert same.expected.problem(500, reply.headers, reply.body) is not None


def test_worker_that_draws_other_items_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(FakeServer()) as url:
        prepared = prepare(url, None)
    monkeypatch.setattr("loadtests.traffic.reference_inputs.SEED", 1)
    with pytest.raises(TargetError, match="draws other items than its master"):
        handed_over(prepared)
