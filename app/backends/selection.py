"""Selects the forms of a model that may serve, by its plan or the operator's settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from app.errors import ArtifactInvalid
from app.types import Device
from models.choices import Precision
from models.manifest import Manifest, Variant, forms_of
from models.plan import DevicePlan, Form, Step, same_release
from models.processor import DeviceKind, Processor
from models.tensors import Tolerance


@dataclass(frozen=True, slots=True)
class Preference:
    """The operator's choice; None for the artifact's choice.

    Attributes:
        variant: the only variant to serve.
        precision: the precision whose plan to follow.
        of_file: whether the choice comes from the models file, not from the server's settings.
    """

    variant: str | None = None
    precision: Precision | None = None
    of_file: bool = False

    def name_of(self, variable: str, key: str) -> str:
        """The place where the choice was made."""
        return f"`{key}` in the models file" if self.of_file else variable


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates for serving a model: all of one precision, so that answers do not vary.

    Attributes:
        label: describes the selection; part of the cache key.
        variant: the pinned variant, or None if a plan decides.
        precision: the precision of all candidates.
        candidates: form -> its variant, in the order of preference.
        tolerance: how far their outputs may differ from the golden ones.
        devices: one for each stage of the only candidate; empty for one device.
        max_batch_size: the largest batch to run; None for the server's setting.
    """

    label: str
    variant: str | None
    precision: Precision
    candidates: dict[Form, Variant]
    tolerance: Tolerance
    devices: tuple[Device, ...] = ()
    max_batch_size: int | None = None


class PinnedVariantMissing(ArtifactInvalid):
    """The artifact is good but lacks the pinned variant; no older version may replace it."""


def select(
    manifest: Manifest, preference: Preference, kinds: Collection[DeviceKind] = ()
) -> Selection:
    """The candidates of an artifact.

    A precision is a preference: a model that lacks it, or has it only for other devices, follows
    its own plan, or, if that is also for other devices, any precision that runs here.

    Without `kinds`, it may be served on any kind of device.

    Raises:
        PinnedVariantMissing: if it lacks the pinned variant; the message lists the others.
    """
    there = manifest.variants
    pinned_name = preference.variant
    pinned_by = preference.name_of("TORCHLANE_VARIANT", "variant")
    if pinned_name is not None:
        if pinned_name not in there:
            raise PinnedVariantMissing(
                f"{_name(manifest)} has no variant {pinned_name!r} ({pinned_by}); "
                f"it has: {', '.join(there)}"
            )
        precision = there[pinned_name].precision
        if preference.precision not in (None, precision):
            raise PinnedVariantMissing(
                f"{_name(manifest)}: variant {pinned_name!r} ({pinned_by}) computes in "
                f"{precision}, {preference.name_of('TORCHLANE_PLAN_PRECISION', 'precision')} says "
                f"{preference.precision}"
            )
        variants = {pinned_name: there[pinned_name]}
    else:
        here = [
            precision
            for precision in dict.fromkeys(each.precision for each in there.values())
            if all(_runs(there.values(), precision, kind) for kind in kinds)
        ]
        preferred = (preference.precision, default_precision(manifest), *here)
        precision = next((each for each in preferred if each in here), default_precision(manifest))
        variants = {name: each for name, each in there.items() if each.precision == precision}
    return Selection(
        label=f"variant:{pinned_name}" if pinned_name else f"plan:{precision}",
        variant=pinned_name,
        precision=precision,
        candidates=forms_of(variants),
        tolerance=_widest([variant.tolerance for variant in variants.values()]),
    )


def planned_batch(
    manifest: Manifest, precision: Precision, kinds: Collection[DeviceKind]
) -> int | None:
    """The largest batch in the artifact's plan; None if there is no plan.

    Args:
        manifest: the artifact's manifest.
        precision: the served precision.
        kinds: kinds of devices that serve it; if none of them has a plan, another kind's counts.
    """
    largest_by_kind = {
        plan.processor.kind: plan.steps[precision][-1].up_to
        for plan in (manifest.plan.devices if manifest.plan else ())
        if precision in plan.steps
    }
    here = [most for kind, most in largest_by_kind.items() if kind in kinds]
    return min(here or largest_by_kind.values(), default=None)


def stages(selection: Selection) -> int:
    """The number of devices usable at once: the number of stages of the only candidate."""
    variants = {variant.file: variant for variant in selection.candidates.values()}
    return len(next(iter(variants.values())).files) if len(variants) == 1 else 1


def stored_steps(
    plan: DevicePlan | None, selection: Selection, here: Processor, torch_version: str, largest: int
) -> tuple[tuple[Step, ...] | None, str]:
    """The steps that export measured, if they apply here; otherwise the reason why not.

    Args:
        plan: the plan for this kind of device; None if there is none.
        selection: the forms that may serve.
        here: the processor that runs it.
        torch_version: version in this process, such as 2.13.0+cpu.
        largest: the largest batch that will run.
    """
    if selection.variant is not None:
        return None, f"variant {selection.variant!r} is pinned"
    steps = plan.steps.get(selection.precision) if plan else None
    if plan is None or not steps:
        return None, f"the artifact has no plan of {selection.precision} for {here.kind}"
    if plan.processor != here:
        return None, f"it was measured on {plan.processor}; here is {here}"
    if not same_release(plan.torch_version, torch_version):
        return None, f"it was measured with torch {plan.torch_version}; here is {torch_version}"
    if steps[-1].up_to < largest:
        return None, f"it ends at batches of {steps[-1].up_to}; here they reach {largest}"
    return steps, ""


def runs_on(selection: Selection, kind: DeviceKind) -> dict[Form, Variant]:
    """The candidates made for a kind of device; only CPUs optimize at load."""
    return {
        form: variant
        for form, variant in selection.candidates.items()
        if kind in variant.device_kinds and (kind == "cpu" or not form.optimized)
    }


def _runs(variants: Iterable[Variant], precision: Precision, kind: DeviceKind) -> bool:
    return any(v.precision == precision and kind in v.device_kinds for v in variants)


def default_precision(manifest: Manifest) -> Precision:
    """The precision in which to serve an artifact if no other is requested."""
    if manifest.plan is not None:
        return manifest.plan.precision
    return next(iter(manifest.variants.values())).precision


def _widest(tolerances: list[Tolerance]) -> Tolerance:
    return Tolerance(
        absolute=max(each.absolute for each in tolerances),
        relative=max(each.relative for each in tolerances),
        of_range=max(each.of_range for each in tolerances),
    )


def _name(manifest: Manifest) -> str:
    return f"{manifest.model}/{manifest.version}"
