"""The version policy: which versions of each model to serve (the newest, all, or pinned ones)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.serving.overrides import Override
from app.types import ModelId
from models.versions import VERSION

NO_OVERRIDE = Override()
GRAMMAR = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_-]{0,63})=)?(.+)")
LATEST = re.compile(r"latest(?::([1-9][0-9]{0,3}))?")
PINNED = re.compile(rf"{VERSION.pattern}(?:,{VERSION.pattern})*")
VALID = (
    "`latest`, `latest:2`, `all`, `none` or `3,5`, for one model `digits=3`, rules separated by `;`"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The versions of one model to serve.

    Attributes:
        candidates: versions to try, in this order.
        most: how many good ones to serve.
        extra: versions to serve in addition.
    """

    candidates: tuple[int, ...]
    most: int
    extra: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """Pinned versions, or else the number of newest ones; None: all, 0: none."""

    pinned: tuple[int, ...] = ()
    newest: int | None = 1


class VersionPolicy:
    """A parsed TORCHLANE_VERSIONS.

    Args:
        rules: by model.
        default: for the other models.
    """

    def __init__(self, rules: Mapping[str, _Rule], default: _Rule) -> None:
        self._rules = dict(rules)
        self._default = default

    @classmethod
    def parse(cls, text: str) -> VersionPolicy:
        """Read a policy.

        Raises:
            ValueError: if it is malformed, with the valid forms.
        """
        rules: dict[str | None, _Rule] = {}
        for part in text.split(";"):
            match = GRAMMAR.fullmatch(part.strip())
            if match is None or match[1] in rules:
                raise ValueError(f"{part.strip()!r} is malformed or repeated; use {VALID}")
            rules[match[1]] = _rule(match[2].strip())
        default = rules.pop(None, _Rule())
        return cls({name: rule for name, rule in rules.items() if name is not None}, default)

    def wanted(self, name: str, on_disk: Sequence[int], override: Override = NO_OVERRIDE) -> Wanted:
        """The versions of a model to serve.

        Args:
            name: the model's name.
            on_disk: its versions, newest first.
            override: an administrator's requests in addition to the policy.
        """
        rule = self._rules.get(name, self._default)
        candidates = [
            number
            for number in rule.pinned or (on_disk if rule.newest != 0 else ())
            if not override.forbids(ModelId(name, number))
        ]
        asked = [number for number in on_disk if ModelId(name, number) in override.loaded]
        extra = tuple(number for number in asked if not override.forbids(ModelId(name, number)))
        most = len(candidates) if rule.pinned or rule.newest is None else rule.newest
        return Wanted(tuple(candidates), most, extra)


def _rule(text: str) -> _Rule:
    if text == "all":
        return _Rule(newest=None)
    if text == "none":
        return _Rule(newest=0)
    if match := LATEST.fullmatch(text):
        return _Rule(newest=int(match[1] or 1))
    if PINNED.fullmatch(text):
        return _Rule(pinned=tuple(sorted({int(each) for each in text.split(",")}, reverse=True)))
    raise ValueError(f"{text!r} names no versions; use {VALID}")
