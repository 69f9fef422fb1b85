"""Credentials of AWS profiles, which the files of AWS's tools hold."""

from __future__ import annotations

import configparser
import datetime as dt
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from models.stores.home import home_folder

READ_AGAIN = dt.timedelta(minutes=10)  # the files may get other keys
KEY = "aws_access_key_id"
VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
# With one of these, the store's own library finds credentials.
FOUND_ELSEWHERE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


class ProfileError(ValueError):
    """The profile, or a variable, cannot be used; the message names it, and no secret."""


class Profile:
    """A profile of ~/.aws/credentials and ~/.aws/config.

    Args:
        environment: the variables AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE.
        home: the user's home; None: there is none, and only files that variables name are read.
    """

    def __init__(self, environment: Mapping[str, str], home: Path | None) -> None:
        self._name = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
        self.name = self._name or "default"
        files = (
            ("AWS_CONFIG_FILE", "config", self._config_section()),
            ("AWS_SHARED_CREDENTIALS_FILE", "credentials", self.name),
        )
        self._files: list[tuple[Path, str]] = []
        for variable, name, section in files:
            if file := environment.get(variable):
                self._files.append((Path(file), section))
            elif home is not None:
                self._files.append((home / ".aws" / name, section))

    def _config_section(self) -> str:
        return self.name if self.name == "default" else f"profile {self.name}"

    def read(self) -> dict[str, str]:
        """The values of the profile; empty: there is none, and none was asked for.

        Raises:
            ProfileError: if AWS_PROFILE names one that is in neither file, or a file is malformed.
        """
        found: dict[str, str] = {}
        for file, section in self._files:
            parser = configparser.RawConfigParser()
            try:
                parser.read(file, encoding="utf-8")
            except (configparser.Error, OSError, ValueError):
                raise ProfileError(f"{file} cannot be read as a file of AWS profiles") from None
            if parser.has_section(section):
                found |= parser.items(section)
        if not found and self._name is not None:
            places = " or ".join(str(file) for file, _ in self._files)
            places = places or "any file: set HOME, or AWS_SHARED_CREDENTIALS_FILE"
            raise ProfileError(f"AWS_PROFILE={self.name} is not in {places}")
        return found

    def keys(self) -> dict[str, Any]:
        """The access key, as the store's library takes it.

        Raises:
            ProfileError: see `read`; also if the profile has no key any more.
        """
        values = self.read()
        try:
            return {
                "access_key_id": values[KEY],
                "secret_access_key": values["aws_secret_access_key"],
                "token": values.get("aws_session_token"),
                "expires_at": dt.datetime.now(dt.UTC) + READ_AGAIN,
            }
        except KeyError as error:
            raise ProfileError(f"the AWS profile {self.name} lacks {error.args[0]}") from None


def credentials_of_profile(
    environment: Mapping[str, str], home: Path | None
) -> tuple[dict[str, str], Callable[[], Any] | None]:
    """Settings of the store from a profile, and what provides its keys; None: another way does.

    Keys in variables come before profiles, as in AWS's tools.

    Raises:
        ProfileError: if there is a profile that cannot be used, or a variable with a line break,
            with which the store's library would panic.
    """
    for name in VARIABLES:
        if not environment.get(name, "").isprintable():
            raise ProfileError(f"{name} has a line break or another control character: remove it")
    if any(environment.get(name) for name in FOUND_ELSEWHERE):
        return {}, None
    profile = Profile(environment, home)
    values = profile.read()
    settings = {}
    if "region" in values and not environment.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        settings["region"] = values["region"]
    if "endpoint_url" in values and not environment.get("AWS_ENDPOINT_URL"):
        settings["endpoint"] = values["endpoint_url"]
    if KEY in values:
        return settings, profile.keys
    if not values.keys() & {"role_arn", "sso_session", "sso_account_id", "credential_process"}:
        return settings, None
    if find_spec("boto3") is None:
        raise ProfileError(
            f"the AWS profile {profile.name} has no {KEY}, and gets its keys in a way that only "
            "AWS's library knows: pip install boto3, or export the keys as variables"
        )
    # Not at the top: no part of any extra.
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415

    return settings, Boto3CredentialProvider()


def check_endpoint(address: str) -> None:
    """Check the address of a store with the API of S3; the store's library would panic.

    Raises:
        ProfileError: if it is none.
    """
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not address.isprintable() or " " in address:
        raise ProfileError(
            "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url of the AWS profile is no "
            "address such as http://127.0.0.1:9000"
        )


def credentials_here() -> tuple[dict[str, str], Callable[[], Any] | None]:
    """The same for this process and its user.

    Raises:
        ProfileError: see `credentials_of_profile`.
    """
    return credentials_of_profile(os.environ, home_folder())
