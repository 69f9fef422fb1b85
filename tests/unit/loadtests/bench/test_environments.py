"""Environments of the peers are pinned."""

from __future__ import annotations

import pytest

from loadtests.bench.environments import PEERS, REQUIREMENTS, WITH_ENVIRONMENT, pins


@pytest.mark.parametrize("peer", WITH_ENVIRONMENT)
def test_requirements_are_pinned_with_our_torch(peer: str) -> None:
    lines = (PEERS / peer / REQUIREMENTS).read_text().splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
    assert pins(peer)["torch"] == "2.13.0"
    assert {peer, f"nvidia-{peer}", f"{peer}_emb"} & set(pins(peer))
