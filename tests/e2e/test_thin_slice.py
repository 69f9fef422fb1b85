"""A real process, a real artifact, one prediction."""

from __future__ import annotations


def test_placeholder() -> None:
    import app.main

    assert app.main.create_app
