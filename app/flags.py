"""A command line with one flag for each setting: `--port 9000` is TORCHLANE_PORT=9000."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pydantic import ByteSize
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource

from models.choices import did_you_mean
from models.system.command_lines import USAGE_EXIT_CODE, flag_of

CLOSE = 0.7  # of two names, without the dashes that all have: `nope` is not a `page`


def _help(field: FieldInfo) -> str:
    """Help text of a setting, with its default."""
    text = (field.description or "").replace("%", "%%")
    if field.default is None:
        return text
    default = field.default
    if isinstance(default, ByteSize):
        default = default.human_readable().replace(".0", "")
    return f"{text} (default: {default})"


class FlagParser(argparse.ArgumentParser):
    """Parses a flag for each setting that is not secret; reports errors in one sentence.

    A secret, which is a setting hidden from `repr`, has no flag: `ps` shows all command lines.

    Args:
        settings: the settings class.
        prefix: the prefix of the equivalent variables.
        groups: the headings of `--help`; each has the name of the first setting below it.
        more: further arguments of `ArgumentParser`.
    """

    def __init__(
        self, settings: type[BaseSettings], prefix: str, groups: Mapping[str, str], **more: Any
    ) -> None:
        super().__init__(allow_abbrev=False, **more)
        self._prefix = prefix
        self._fields: dict[str, FieldInfo] = settings.model_fields
        self._secrets = {name for name, field in self._fields.items() if not field.repr}
        self._groups = self._group(groups)
        self._source: CliSettingsSource[Any] = CliSettingsSource(
            settings,
            root_parser=self,
            cli_kebab_case=True,
            cli_hide_none_type=True,
            add_argument_method=self._add,
        )

    def read(self, arguments: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Any]]:
        """Parse arguments; return those that are not settings, and the given settings by name."""
        given = self.parse_args(arguments)
        settings = {name: value for name, value in vars(given).items() if name in self._fields}
        empty = next((name for name, value in settings.items() if value == ""), None)
        if empty is not None:
            self.error(f"{flag_of(empty)} is empty: give it a value or leave it out")
        return given, self._source(parsed_args=settings)()

    def error(self, message: str) -> NoReturn:
        """Exit with one sentence instead of fifty lines of usage."""
        wrong = message.removeprefix("unrecognized arguments: ")
        if wrong != message:
            message = self._unknown(wrong.partition(" ")[0].partition("=")[0])
        self.exit(USAGE_EXIT_CODE, f"torchlane: {message}\n")

    def _add(self, parser: argparse.ArgumentParser, *names: str, **how: Any) -> None:
        """Add the flag of a setting, with the setting's own help text."""
        if how["dest"] not in self._secrets:
            how["help"] = _help(self._fields[how["dest"]])
            self._groups[how["dest"]].add_argument(*names, **how)

    def _group(self, headings: Mapping[str, str]) -> dict[str, argparse._ArgumentGroup]:
        """Return the group of each setting."""
        firsts = {first: heading for heading, first in headings.items()}
        groups = {}
        for name in self._fields:
            if name in firsts:
                group = self.add_argument_group(firsts[name])
            groups[name] = group
        return groups

    def _unknown(self, flag: str) -> str:
        name = flag.removeprefix("--").replace("-", "_")
        if name in self._secrets:
            variable = f"{self._prefix}{name.upper()}"
            return f"{flag} does not exist, because `ps` would show its value: set {variable}"
        known = [each for each in self._fields if each not in self._secrets]
        hint = did_you_mean(name, known, "--help lists all flags", show=flag_of, cutoff=CLOSE)
        return f"{flag} is not a flag; {hint}"
