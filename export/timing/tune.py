"""Times every form at every batch size, and plans which form runs which size.

The artifact has everything that tuning needs, so it can be tuned on another machine without the
Python model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from export.errors import ExportError, UsageError, reason
from export.timing.contest import Contest, contests, time_forms
from export.timing.layout import best_layout
from models.choices import MAX_BATCH, Precision
from models.definitions.definition import Progress
from models.golden import golden_batches
from models.manifest import Manifest, Variant, forms_of
from models.plan import (
    DevicePlan,
    Form,
    FormTimes,
    Plan,
    Step,
    batch_sizes,
    choose,
    choose_one,
    extend_steps,
    summary,
)
from models.processor import DeviceKind
from models.runtimes.base import VariantFile
from models.runtimes.forms import (
    Forward,
    WrongMachine,
    check_runs_here,
    intra_op_threads,
    kinds_here,
    load_form,
    processor_of,
)
from models.system.archive import ArchiveError
from models.system.extras import NotInstalled
from models.system.heap import trim
from models.system.resources import serving_threads

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to measure.

    Attributes:
        max_batch: the largest batch to time; None: the existing plan's, else MAX_BATCH.
        threads: intra-op threads on the CPU; None: as many as a server with one replica uses.
        precision: the plan's default; None: float32 if a variant has it, else the first one's.
    """

    max_batch: int | None = None
    threads: int | None = None
    precision: Precision | None = None


def measure(folder: Path, manifest: Manifest, options: TuneOptions, progress: Progress) -> Plan:
    """Time all forms on the golden examples, on every kind of device of this machine.

    Keeps the manifest's plan for kinds of device that this machine does not have.

    Args:
        folder: with the variants' files.
        manifest: of the artifact.
        options: how to measure.
        progress: called after each batch size, and for each form that cannot be timed here.

    Raises:
        UsageError: if no variant has the wanted precision.
        ExportError: if no variant runs here, or one fails while it is timed.
    """
    precision = default_precision(manifest.variants, options.precision)
    plans = (
        _measure_on(kind, folder, manifest, options, precision, progress) for kind in kinds_here()
    )
    devices = [plan for plan in plans if plan is not None]
    if not devices:
        raise ExportError("no variant runs on this machine, so there is nothing to measure")
    new = {device.processor.kind for device in devices}
    old = manifest.plan.devices if manifest.plan else ()
    others = (device for device in old if device.processor.kind not in new)
    return Plan(precision=precision, devices=(*devices, *others))


def default_precision(variants: Mapping[str, Variant], precision: Precision | None) -> Precision:
    """Return the precision of a plan, which a server uses by default.

    Raises:
        UsageError: if no variant has the wanted precision.
    """
    there = list(dict.fromkeys(variant.precision for variant in variants.values()))
    if precision is not None and precision not in there:
        raise UsageError(
            f"--plan-precision {precision}: no variant has it; there are: {', '.join(there)}"
        )
    return precision or ("float32" if "float32" in there else there[0])


def _measure_on(
    kind: DeviceKind,
    folder: Path,
    manifest: Manifest,
    options: TuneOptions,
    precision: Precision,
    progress: Progress,
) -> DevicePlan | None:
    device = torch.device(kind)
    threads = (options.threads or serving_threads()) if kind == "cpu" else 1
    sizes = batch_sizes(options.max_batch or _largest(manifest.plan, kind))

    def tell(why: str) -> None:
        progress(len(sizes), len(sizes), why)

    def load(*forms: Form) -> dict[Form, Forward]:
        return load_forms(folder, manifest, device, tell, forms)

    def time(forms: dict[Form, Forward]) -> Contest:
        return _time_sizes(manifest, forms, sizes, device, threads, progress)

    in_memory: dict[Form, Forward] = {}
    with intra_op_threads(threads):
        if any(map(manifest.is_large, manifest.variants.values())):
            results = _knock_out(manifest, precision, in_memory, load, time)
        else:
            in_memory |= load(*forms_of(manifest.variants))
            results = [time(in_memory)] if in_memory else []
    if not results:
        return None
    times: dict[Form, FormTimes] = {}
    steps: dict[Precision, tuple[Step, ...]] = {}
    for contest in results:
        times |= _summaries(contest)
        steps |= plan_steps(contest, sizes[-1])
    plan = DevicePlan(
        processor=processor_of(device, threads),
        torch_version=torch.__version__,
        times=tuple(times.values()),
        steps=steps,
        kept_waiting=max(each.kept_waiting or 0 for each in results) or None,
        unsettled=tuple(sorted({size for each in results for size in each.unsettled})),
    )
    if kind != "cpu" or options.threads is not None:
        return plan  # a server with a fixed number of threads has no choice

    def open_form(form: Form) -> Forward:
        return in_memory.get(form) or load(form)[form]

    return plan.model_copy(
        update={"layout": best_layout(manifest, plan, precision, open_form, tell)}
    )


def _knock_out(
    manifest: Manifest,
    default: Precision,
    in_memory: dict[Form, Forward],
    load: Callable[..., dict[Form, Forward]],
    time: Callable[[dict[Form, Forward]], Contest],
) -> list[Contest]:
    """Time the forms of a large model, a precision at a time, and large ones in pairs.

    So two large forms are in memory at most. The faster one of two meets the next: one form will
    run all sizes.

    Args:
        manifest: of the artifact.
        default: the precision that is timed last, and stays loaded for what follows.
        in_memory: gets the forms that stay loaded.
        load: loads forms, or says why not.
        time: times forms against each other.
    """
    results: list[Contest] = []
    by_precision: dict[Precision, list[Form]] = {}
    for form, variant in forms_of(manifest.variants).items():
        by_precision.setdefault(variant.precision, []).append(form)
    for precision in sorted(by_precision, key=lambda each: each == default):
        forms = by_precision[precision]
        are_large = any(manifest.is_large(manifest.variants[each.variant]) for each in forms)
        last = len(results)
        in_memory.clear()
        trim()
        for form in forms:
            in_memory |= load(form)
            is_complete = len(in_memory) == 2 if are_large else form == forms[-1]
            if in_memory and (is_complete or (form == forms[-1] and len(results) == last)):
                results.append(time(in_memory))
                if are_large:
                    best = plan_steps(results[-1], 1)[precision][0].form
                    survivor = in_memory.get(best)
                    in_memory.clear()
                    trim()
                    in_memory |= load(best) if survivor is None else {best: survivor}
    return results


def _time_sizes(
    manifest: Manifest,
    forms: dict[Form, Forward],
    sizes: Sequence[int],
    device: torch.device,
    threads: int,
    progress: Progress,
) -> Contest:
    """Time forms against each other, at each size that may change the plan; remove the losers."""
    contest = Contest(manifest)
    for done, size in enumerate(sizes, start=1):
        if contest.can_stop(size):
            largest = max(contest.rounds)
            why = f"{device.type}, batches above {largest}: not timed, as they change no plan"
            progress(len(sizes), len(sizes), why)
            break
        if size > 2 and done % 2 and size < sizes[-1] and contest.is_slow:
            continue
        batches = golden_batches(manifest, size)
        try:
            timing = time_forms(manifest, forms, batches, device, threads, contest.warm_runs)
        except Exception as error:  # a form may fail in any way at a size that it never ran
            raise ExportError(f"a batch of {size} cannot be timed: {reason(error)}") from error
        contest.add(size, timing)
        for form in set(forms) - set(contest.contenders):
            del forms[form]
        trim()  # what these and forwards took
        progress(done, len(sizes), f"{device.type}, batch {size}")
    return contest


def _summaries(contest: Contest) -> dict[Form, FormTimes]:
    """Return the times of each form that was timed."""
    forms = dict.fromkeys(form for by_form in contest.rounds.values() for form in by_form)
    variants = contest.manifest.variants
    return {form: summary(contest.rounds, form, variants[form.variant].precision) for form in forms}


def plan_steps(contest: Contest, largest: int) -> dict[Precision, tuple[Step, ...]]:
    """Choose the form for each batch size, per precision.

    Args:
        contest: the times.
        largest: the batch size that the plan must reach; unmeasured larger sizes get the last form.
    """
    manifest, by_precision = contest.manifest, {}
    forms = dict.fromkeys(form for by_form in contest.rounds.values() for form in by_form)
    for precision, rounds in contests(manifest, contest.rounds).items():
        candidates = [
            form for form in forms if manifest.variants[form.variant].precision == precision
        ]
        variants = (each for each in manifest.variants.values() if each.precision == precision)
        if manifest.may_mix(variants):
            steps = choose(rounds, candidates, contest.unsettled)
        else:
            steps = choose_one(rounds, candidates, contest.unsettled)
        by_precision[precision] = extend_steps(steps, largest)
    return by_precision


def _largest(plan: Plan | None, kind: DeviceKind) -> int:
    """Return the largest batch of the existing plan: on this kind of device, else on any."""
    if plan is None:
        return MAX_BATCH
    own = plan.on(kind)
    devices = (own,) if own is not None else plan.devices
    ends = (steps[-1].up_to for device in devices for steps in device.steps.values())
    return max(ends, default=MAX_BATCH)


def load_forms(
    folder: Path,
    manifest: Manifest,
    device: torch.device,
    tell: Tell,
    only: Collection[Form] | None = None,
) -> dict[Form, Forward]:
    """Load every form that runs on a device here.

    Args:
        folder: with the variants' files.
        manifest: of the artifact.
        device: where they will run.
        tell: called with the reason if a form is missing. A compiled form may be for another
            machine, or its runtime is not installed here; a server skips it too.
        only: load no other forms; None: all.

    Raises:
        ExportError: if a TorchScript form cannot be loaded.
    """
    forms: dict[Form, Forward] = {}
    for form, variant in forms_of(manifest.variants).items():
        if (form.optimized and device.type != "cpu") or (only is not None and form not in only):
            continue
        try:
            check_runs_here(variant, device, torch.__version__)
        except WrongMachine as error:
            tell(f"without {form}: {error}")
            continue
        try:
            files = [
                VariantFile.at(folder / name, manifest.files[name].sha256) for name in variant.files
            ]
            forms[form] = load_form(
                *(files, variant.format, manifest.inputs, device),
                optimized=form.optimized,
                operators=variant.operators,
            )
            trim()  # what only loading took
        except (OSError, RuntimeError, ArchiveError, NotInstalled) as error:
            why = f"{form} cannot be loaded here: {reason(error)}"
            if variant.format == "torchscript":
                raise ExportError(why) from error
            tell(why)
    return forms
