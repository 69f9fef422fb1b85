"""Users without a home, as in containers that run under any number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.model_source import cache_of, repository_of
from app.settings import Settings, SettingsError
from models.stores.aws import ProfileError, credentials_here
from models.stores.choose import open_store
from models.stores.home import home_folder
from models.stores.urls import StoreUrl


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(each for each in os.environ if each.startswith("AWS_")), "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)


def test_stores_do_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_folder() is None
    assert credentials_here() == ({}, None)
    open_store(StoreUrl.parse("https://models.example/m"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(ProfileError, match="AWS_PROFILE=work is not in any file: set HOME"):
        credentials_here()


def test_a_cache_without_a_home_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="set TORCHLANE_SOURCE_CACHE"):
        repository_of(Settings(model_dir=StoreUrl.parse("https://models.example/m")))
    assert cache_of(Settings()) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_of(Settings()) == Path("/somewhere/torchlane")
