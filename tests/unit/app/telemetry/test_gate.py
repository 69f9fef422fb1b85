"""The gate lets as many requests pass as the sampler by ratio takes, and asks for every parent."""

from __future__ import annotations

import itertools
import random

import pytest

from app.telemetry.gate import SamplingGate

FIELDS = [b"traceparent", b"tracestate"]
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.mark.parametrize("ratio", [0.0, 1e-300, 0.01, 0.5, 0.999, 1.0])
def test_gate_passes_the_given_ratio(ratio: float) -> None:
    random.seed(1)
    gate = SamplingGate(FIELDS, ratio, leaves_out=True)
    passed = [gate.may_want({b"host": b"x"}) for _ in range(20_000)]
    assert sum(passed) / len(passed) == pytest.approx(ratio, abs=0.01, rel=0.15)
    # One that passes does not make the next one more or less likely to.
    pairs = sum(one and other for one, other in itertools.pairwise(passed))
    assert pairs / len(passed) == pytest.approx(ratio * ratio, abs=0.01)


def test_parent_decision_overrides_the_ratio() -> None:
    gate = SamplingGate(FIELDS, 0.0, leaves_out=True)
    assert gate.may_want({b"traceparent": PARENT + b"01"})
    assert gate.may_want({b"tracestate": b"a=1"})
    assert not gate.may_want({b"traceparent": PARENT + b"00"})
    assert SamplingGate(FIELDS, 0.0, leaves_out=False).may_want({b"traceparent": PARENT + b"00"})
    assert not SamplingGate([], 0.0, leaves_out=True).may_want({b"traceparent": PARENT + b"01"})
