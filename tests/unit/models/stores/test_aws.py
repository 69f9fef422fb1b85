"""Credentials of AWS profiles, from files as AWS's tools write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.stores.aws import ProfileError, check_endpoint, credentials_of_profile

CREDENTIALS = """
[default]
aws_access_key_id = A
aws_secret_access_key = B
[work]
aws_access_key_id = C
aws_secret_access_key = D
aws_session_token = E
[half]
aws_access_key_id = F
"""
CONFIG = """
[profile work]
region = eu-central-1
endpoint_url = http://127.0.0.1:9000
[profile login]
sso_session = company
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path


def test_a_profile_has_keys_region_and_endpoint(home: Path) -> None:
    settings, provider = credentials_of_profile({"AWS_PROFILE": "work"}, home)
    assert settings == {"region": "eu-central-1", "endpoint": "http://127.0.0.1:9000"}
    assert provider is not None
    keys = provider()
    assert (keys["access_key_id"], keys["secret_access_key"], keys["token"]) == ("C", "D", "E")
    rotated = CREDENTIALS.replace("= C", "= C2")
    (home / ".aws" / "credentials").write_text(rotated)
    assert provider()["access_key_id"] == "C2"


def test_the_default_profile_needs_no_variable(home: Path) -> None:
    settings, provider = credentials_of_profile({}, home)
    assert settings == {}
    assert provider is not None
    assert provider()["access_key_id"] == "A"


def test_variables_come_before_profiles(home: Path, tmp_path: Path) -> None:
    assert credentials_of_profile({"AWS_ACCESS_KEY_ID": "Z"}, home) == ({}, None)
    given = {"AWS_PROFILE": "work", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "https://x"}
    assert credentials_of_profile(given, home)[0] == {}
    assert credentials_of_profile({}, tmp_path / "nobody") == ({}, None)


def test_a_profile_that_cannot_be_used_is_named(home: Path) -> None:
    with pytest.raises(ProfileError, match="AWS_PROFILE=none is not in"):
        credentials_of_profile({"AWS_PROFILE": "none"}, home)
    with pytest.raises(ProfileError, match="pip install boto3"):
        credentials_of_profile({"AWS_PROFILE": "login"}, home)
    _, provider = credentials_of_profile({"AWS_PROFILE": "half"}, home)
    assert provider is not None
    with pytest.raises(ProfileError, match="the AWS profile half lacks aws_secret_access_key"):
        provider()
    (home / ".aws" / "config").write_text("no section = 1")
    with pytest.raises(ProfileError, match="cannot be read as a file of AWS profiles"):
        credentials_of_profile({}, home)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_line_break_in_a_variable_is_named(name: str) -> None:
    with pytest.raises(ProfileError, match=f"^{name} has a line break") as refused:
        credentials_of_profile({name: "a-secret\n"}, None)
    assert "a-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9000", "http://", "ftp://a", "http://a b", "http://a:999999", "http://["]
)
def test_an_endpoint_that_is_no_address_is_named(address: str) -> None:
    check_endpoint("https://127.0.0.1:9000/path")
    with pytest.raises(ProfileError, match="AWS_ENDPOINT_URL"):
        check_endpoint(address)
