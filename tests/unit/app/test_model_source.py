"""Servers share a mirror only if they see the same store with the same trust."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from app.model_source import repository_of
from app.settings import Settings, SettingsError


def root(cache: Path, url: str = "s3://bucket/models", keys: Path | None = None) -> Path:
    settings = Settings(model_dir=url, source_cache=cache, trusted_keys=keys)
    return repository_of(settings).root


def new_key(file: Path) -> Path:
    public = Ed25519PrivateKey.generate().public_key()
    file.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return file


def test_keys_count_by_what_they_are_not_where(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key")
    first = root(tmp_path, keys=key)
    (tmp_path / "copy").write_bytes(key.read_bytes())
    assert root(tmp_path, keys=tmp_path / "copy") == first
    assert root(tmp_path) != first
    assert root(tmp_path, keys=new_key(key)) != first


def test_keys_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^TORCHLANE_TRUSTED_KEYS=.* cannot be read"):
        root(tmp_path, keys=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/models", "AWS_ENDPOINT_URL"),
        ("az://container/models", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("hf://shop/models", "HF_ENDPOINT"),
        ("models:/digits@champion", "MLFLOW_TRACKING_URI"),
    ],
)
def test_one_name_on_two_services_is_two_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    first = root(tmp_path, url)
    monkeypatch.setenv(name, "another")
    assert root(tmp_path, url) != first
    assert root(tmp_path, "gs://bucket/models") == root(tmp_path, "gs://bucket/models")
