"""Which packages of an extra are missing."""

from __future__ import annotations

import sys

import pytest

from models.system.extras import MissingExtra, check_extra


def test_message_names_what_is_missing() -> None:
    with pytest.raises(MissingExtra) as caught:
        check_extra("--port", "grpc", ("json", "not_there", "not.there"))
    assert str(caught.value) == (
        "--port needs packages that are not installed (not_there, not.there): "
        "pip install 'torchlane[grpc]'"
    )


def test_packages_are_not_imported() -> None:
    check_extra("it", "some", ("antigravity",))
    assert "antigravity" not in sys.modules
