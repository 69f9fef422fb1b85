"""Releases in steps: how much a new version gets of the requests that name no version."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from models.versions import MAX_VERSION

WHOLE = 100.0  # per cent
MOST_KEPT = 100  # inputs of a model with different answers
JUDGED_SHARE = 0.1  # of the old version's items, for a release without a shadow of its own
Percent = Annotated[float, Field(gt=0, le=WHOLE, allow_inf_nan=False)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class _Checked(BaseModel):
    """What the models file or the file of the releases' state contains."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shadow(_Checked):
    """What the models file says about a shadow.

    Attributes:
        version: the version that computes copies.
        share: of the items that other versions compute.
        keep: maximum number of inputs that are kept because the answers differ.
    """

    version: Version
    share: float = Field(gt=0, le=1, allow_inf_nan=False)
    keep: int = Field(0, ge=0, le=MOST_KEPT)


class StopIf(_Checked):
    """When a release is rolled back; see docs/models-file.md.

    Attributes:
        errors_above: share of the new version's accepted items that fail; 1: never.
        latency_above: its mean seconds in queue and computation, divided by the old version's;
            None: never.
        p99_above: its p99 latency, divided by the old version's, as far as the histogram's bounds
            tell; None: never.
        agreement_below: share of the old version's copied items to which the new one gives the same
            answer; None: never.
        min_requests: of a version in the current step, or copied items; with fewer, it is not
            judged.
    """

    errors_above: float = Field(0.01, ge=0, le=1, allow_inf_nan=False)
    latency_above: float | None = Field(None, ge=1, allow_inf_nan=False)
    p99_above: float | None = Field(None, ge=1, allow_inf_nan=False)
    agreement_below: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    min_requests: int = Field(50, ge=1, le=1_000_000)


class Release(_Checked):
    """What the models file says about a release.

    Attributes:
        to: the new version.
        old: the version that keeps the rest; None: the one that serves when the release begins.
        steps: per cent of the requests that it gets, one step after the other; the last is 100.
        every_s: seconds of each step.
        stop_if: when it is rolled back.
    """

    to: Version
    old: Version | None = Field(None, alias="from")
    steps: list[Percent] = Field([1.0, 10.0, 50.0, WHOLE], min_length=1, max_length=100)
    every_s: float = Field(600.0, gt=0, le=31_536_000, allow_inf_nan=False)
    stop_if: StopIf = StopIf()

    @field_validator("steps")
    @classmethod
    def _check_steps(cls, steps: list[float]) -> list[float]:
        if sorted(set(steps)) != steps or steps[-1] != WHOLE:
            raise PydanticCustomError("steps", "steps must rise and end with 100 (per cent)")
        return steps

    @model_validator(mode="after")
    def _check_versions(self) -> Release:
        if self.old == self.to:
            raise PydanticCustomError("from", "`from` and `to` must be different versions")
        return self

    def problem(self, served: Sequence[int]) -> str | None:
        """Why it cannot go on with these served versions; None: it can."""
        needed = [self.to] if self.old is None else [self.to, self.old]
        if missing := [each for each in needed if each not in served]:
            what = f"version {missing[0]} is not served"
        elif len(served) == 1:
            what = f"no other version than {self.to} is served"
        else:
            return None
        return f"the release waits: {what}; TORCHLANE_VERSIONS sets which versions are served"


class Phase(enum.StrEnum):
    """What a release does."""

    RUNNING = "running"
    PAUSED = "paused"
    ROLLED_BACK = "rolled_back"
    COMPLETED = "completed"


ACTIVE = (Phase.RUNNING, Phase.PAUSED)  # phases in which the new version is judged


class Stage(_Checked):
    """How far a release is.

    Attributes:
        release: as it was in the models file when it began.
        old: the version that keeps the other requests.
        step: its number, from 0.
        since: when this step or phase began, in seconds since 1970.
        reason: why it was rolled back.
    """

    release: Release
    old: int = Field(ge=1)
    phase: Phase = Phase.RUNNING
    step: int = Field(0, ge=0)
    since: float = Field(allow_inf_nan=False)
    reason: str | None = None

    @model_validator(mode="after")
    def _check_step(self) -> Stage:
        if self.step >= len(self.release.steps):
            raise PydanticCustomError("step", "there is no such step")
        return self

    def changed(self, now: float, **changes: object) -> Stage:
        """This stage with some changes, which begin now."""
        return self.model_copy(update={"since": now, **changes})

    @property
    def needed(self) -> set[int]:
        """The versions that requests may get."""
        if self.phase is Phase.COMPLETED:
            return {self.release.to}
        return {self.old} if self.phase is Phase.ROLLED_BACK else {self.old, self.release.to}

    def problem(self, served: Sequence[int]) -> str | None:
        """Why a step does not count; None: it does."""
        if self.phase in ACTIVE and self.old not in served:
            return f"the release waits: version {self.old}, which keeps the rest, is not served"
        return None

    @property
    def percent(self) -> float:
        """What the new version gets now."""
        return 0.0 if self.phase is Phase.ROLLED_BACK else self.release.steps[self.step]


def source_of_copies(release: Release | None, stage: Stage | None) -> int | None:
    """The version whose items are copied for a release that is judged by agreement now.

    Args:
        release: as the models file has it now; None: there is none.
        stage: how far it is, or an earlier one; None: it has not begun.

    Returns:
        None if no such release goes on.
    """
    if release is None or release.stop_if.agreement_below is None:
        return None
    goes_on = stage is not None and stage.release == release and stage.phase in ACTIVE
    return stage.old if stage is not None and goes_on else None


def why_it_waits(release: Release, stage: Stage | None, served: Sequence[int]) -> str | None:
    """Why a release does not go on with these served versions; None: it does."""
    has_begun = stage is not None and stage.release == release
    return release.problem(served) or (stage.problem(served) if stage and has_begun else None)


def old_version(release: Release, stage: Stage | None, others: Collection[int]) -> int:
    """The version that keeps the rest.

    Args:
        release: as the models file has it now.
        stage: how far it is, or how far an earlier release of the model is; None: unknown.
        others: the served versions without the new one; at least one.
    """
    before = None
    if stage is not None:
        is_other = stage.release.to != release.to
        before = stage.release.to if is_other and stage.phase is Phase.COMPLETED else stage.old
    served = (each for each in (release.old, before) if each in others)
    return next((each for each in served if each is not None), max(others))


def release_weights(
    release: Release, stage: Stage | None, served: Iterable[int]
) -> dict[int, float]:
    """The weights of the served versions; the new one gets nothing before the release begins.

    Args:
        release: as the models file has it now.
        stage: how far it is, or an earlier one; None: it has not begun.
        served: the served versions.
    """
    has_begun = stage is not None and stage.release.to == release.to
    percent = stage.percent if stage is not None and has_begun else 0.0
    numbers = set(served)
    weights = {release.to: percent} if release.to in numbers else {}
    if others := numbers - {release.to}:
        weights[old_version(release, stage, others)] = WHOLE - percent
    return weights
