"""Builds every variant, verifies it, and keeps those that pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from export.artifact import digest_of
from export.errors import ExportError, ParityError, reason
from export.options.artifacts import INTEGER_SHARE
from export.proving import verify
from export.proving.reference import ParityReference, reference_of
from export.variants.base import (
    Draft,
    NotApplicable,
    Subject,
    VariantMaker,
    own_precision,
    scaled,
    tolerance_of,
    weights_of,
)
from export.variants.registry import MAKERS, SEVERAL_COPIES, select_variants
from models.choices import Precision
from models.definitions.definition import HeldOut, Progress
from models.manifest import LARGE_BYTES, Difference, OperatorLibrary, Parity, Variant
from models.processor import DeviceKind
from models.runtimes.base import VariantFile
from models.runtimes.forms import Forward, intra_op_threads, kinds_here, load_form
from models.runtimes.operators import operators_in
from models.system.archive import ArchiveError, check_archive
from models.system.heap import collect
from models.system.resources import serving_threads
from models.tensors import Tolerance

Stage = Callable[[str], Progress]
COPIES = "it would hold several copies of the weights, which are large"
# A lossy form that takes this many times as long as eager has no use here: without instructions for
# its numbers a processor converts them before and after each operation.
SLOWER = 3.0


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """Which variants to build, and their requirements.

    Attributes:
        variants: names of the wanted ones; None: all that the model and the machine allow.
        max_accuracy_drop: how many points (hundredths) less accurate than eager a variant may be.
        max_batch: the largest batch that is compared; None: by the cost of a forward.
        thorough: compare many batch sizes, however long that takes.
        integer_share: the share of an item's integers that may differ where scores tie.
    """

    variants: tuple[str, ...] | None = None
    max_accuracy_drop: float = 0.5
    max_batch: int | None = None
    thorough: bool = False
    integer_share: float = INTEGER_SHARE

    @property
    def may_leave_out(self) -> bool:
        """Whether a wrong variant besides TorchScript does not end the export."""
        return self.variants is None


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof.

    Attributes:
        variants: those that passed, in the order of preference.
        left_out: variant -> the reason.
        accuracy: of eager on the held-out set, if there is one.
        max_batch: the largest batch that was compared.
    """

    variants: Mapping[str, Variant]
    left_out: Mapping[str, str]
    accuracy: float | None
    max_batch: int


@dataclass(slots=True)
class _ProofState:
    """The model, and the results so far."""

    subject: Subject
    options: ProofOptions
    own: Precision
    folder: Path
    stage: Stage
    threads: int
    reference: ParityReference
    held_out: HeldOut | None
    accuracy: float | None
    variants: dict[str, Variant] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def prove_variants(
    subject: Subject,
    options: ProofOptions,
    folder: Path,
    stage: Stage,
    threads: int | None = None,
) -> Proof:
    """Write the wanted variants' files to a folder; remove those that fail.

    Everything runs with the server's number of threads, by default that of one replica.

    Raises:
        UsageError: if a wanted variant is unknown, or none is wanted.
        ParityError: if TorchScript, or an explicitly requested variant, answers differently from
            eager.
        ExportError: if none is left.
    """
    definition = subject.definition
    names = select_variants(options.variants, definition)
    own = own_precision(subject.eager, definition.outputs)
    threads = threads or serving_threads()
    dense = (each for each in weights_of(subject.eager) if each.layout == torch.strided)
    is_large = sum(each.nbytes for each in dense) > LARGE_BYTES
    with intra_op_threads(threads):  # on all cores each forward would wait for the busiest core
        against = reference_of(
            subject.eager,
            definition,
            options.max_batch,
            stage("eager"),
            thorough=options.thorough,
            tolerance=tolerance_of("float32", own, options.integer_share),
        )
        held_out = definition.held_out() if definition.held_out else None
        accuracy = verify.accuracy(subject.eager, definition, held_out) if held_out else None
        work = _ProofState(
            subject, options, own, folder, stage, threads, against, held_out, accuracy
        )
        for name in names:
            if name == "trace" and options.variants is None and "script" in work.variants:
                continue  # it would lose control flow and gain nothing
            if is_large and name in SEVERAL_COPIES and options.may_leave_out:
                _leave_out(work, name, COPIES, stage(name))
                continue
            _attempt(work, name, MAKERS[name])
            collect()
    if not work.variants:
        reasons = "; ".join(f"{name}: {why}" for name, why in work.left_out.items())
        hint = ""
        if work.left_out.get("script", "").startswith("torch.jit.script failed"):
            hint = "; build it with --variants trace, which needs no source that compiles"
        raise ExportError(f"no variant of {subject.name!r} could be built: {reasons}{hint}")
    return Proof(work.variants, work.left_out, accuracy, against.batch_sizes[-1])


def _attempt(work: _ProofState, name: str, maker: VariantMaker) -> None:
    """Build and verify one variant; record it, or the reason for leaving it out."""
    progress = work.stage(name)
    progress(0, 1, "making")
    try:
        draft = maker.make(work.subject, work.folder)
    except NotApplicable as error:
        _leave_out(work, name, str(error), progress)
        return
    collect()  # what making it took: next it is loaded beside the model
    try:
        work.variants[name] = _prove(work, name, maker.precision, draft, progress)
    except (NotApplicable, ParityError) as error:
        # TorchScript is what every server can run; without the others an artifact is still good.
        is_extra = maker.precision != "float32" or draft.format != "torchscript"
        if isinstance(error, ParityError) and not (is_extra and work.options.may_leave_out):
            raise ParityError(f"{name}: {error}{_without(work, name)}") from error
        for file in draft.files:
            (work.folder / file).unlink()
        _leave_out(work, name, str(error), progress)


def _without(work: _ProofState, name: str) -> str:
    """Return advice for when one variant prevents the export of all others."""
    others = [
        other
        for other in select_variants(work.options.variants, work.subject.definition)
        if other != name
    ]
    if not others:
        return ""
    return f". Nothing was written; to export without it: --variants {','.join(others)}"


def _leave_out(work: _ProofState, name: str, why: str, progress: Progress) -> None:
    work.left_out[name] = why
    progress(1, 1, f"left out: {why}")


def _leave_out_optimized(work: _ProofState, name: str, why: str, progress: Progress) -> None:
    """Record why a variant is not optimized at load; the variant itself is kept."""
    work.left_out[f"{name}-optimized"] = f"optimize_for_inference at load: {why}"
    progress(1, 1, f"left out, optimized at load: {why}")


def _accuracy(work: _ProofState, form: Forward, kind: DeviceKind) -> float | None:
    """Return the accuracy on the held-out set, if there is one.

    Raises:
        NotApplicable: if it is lower than eager's by more than allowed.
    """
    if work.held_out is None or work.accuracy is None:
        return None
    accuracy = verify.accuracy(form, work.subject.definition, work.held_out, torch.device(kind))
    drop = round(100 * (work.accuracy - accuracy), 6)  # 0.5 points are 0.5, not 0.5000000000000004
    if drop > work.options.max_accuracy_drop:
        raise NotApplicable(
            f"accuracy {accuracy:.4f} is {drop:.2f} points below eager's; "
            f"--max-accuracy-drop allows {work.options.max_accuracy_drop:g}"
        )
    return accuracy


def _prove(
    work: _ProofState, name: str, precision: Precision, draft: Draft, progress: Progress
) -> Variant:
    """Verify the written file, loaded as a server loads it, on every kind of device here."""
    files = [
        VariantFile.at(work.folder / name, digest_of(work.folder / name).sha256)
        for name in draft.files
    ]
    parity = accuracy = None
    kinds = [kind for kind in kinds_here() if kind in draft.device_kinds]
    for kind in kinds:
        plain = _load(work, draft, files, kind, optimized=False)
        if kinds == ["cpu"] and precision != "float32" and work.options.may_leave_out:
            _check_pace(work, name, plain)
        so_far = 0.0 if parity is None else parity.max_absolute
        device_parity = _parity(work, plain, precision, kind, progress, so_far)
        parity = device_parity if parity is None else _worse(parity, device_parity)
        here = _accuracy(work, plain, kind)
        accuracy = here if accuracy is None or here is None else min(accuracy, here)
    if parity is None:
        raise ExportError(f"bug: {name} was built for no device of this machine")
    optimized, interchangeable, its_accuracy = _prove_optimized(
        work, name, draft, files, progress, parity
    )
    if accuracy is not None and its_accuracy is not None:
        accuracy = min(accuracy, its_accuracy)
    return Variant(
        file=draft.file,
        later_stages=draft.later_stages,
        format=draft.format,
        operators=_operators(work, draft),
        precision=precision,
        made_by=draft.made_by,
        torch_version=torch.__version__,
        device_kinds=draft.device_kinds,
        tolerance=_tolerance(work, precision),
        parity=parity,
        optimized=optimized,
        accuracy=accuracy,
        native=draft.native,
        interchangeable=interchangeable,
    )


def _check_pace(work: _ProofState, name: str, form: Forward) -> None:
    """Compare the time of a form with eager's, on few items, before it is verified on many.

    Raises:
        NotApplicable: if it is much slower.
    """
    slower = verify.pace(form, work.subject.eager, work.reference)
    if slower > SLOWER:
        raise NotApplicable(
            f"on this CPU it takes {slower:.0f} times as long as eager; to build it for another "
            "machine, list it in --variants"
        )


def _prove_optimized(
    work: _ProofState,
    name: str,
    draft: Draft,
    files: Sequence[VariantFile],
    progress: Progress,
    plain: Parity,
) -> tuple[Parity | None, bool, float | None]:
    """Verify the form that a server creates at load; None, with a reason, if it fails.

    Also returns whether a plan may mix it with the plain form, and its accuracy. In float32 both
    equal eager within the tolerance; in a lossy precision their errors differ, so the two are
    compared.
    """
    if draft.format != "torchscript" or "cpu" not in draft.device_kinds or draft.later_stages:
        return None, True, None
    precision = MAKERS[name].precision
    if (work.folder / draft.file).stat().st_size > LARGE_BYTES:
        _leave_out_optimized(work, name, COPIES, progress)
        return None, True, None
    try:
        form = _load(work, draft, files, "cpu", optimized=True)
        parity = _parity(work, form, precision, "cpu", progress, plain.max_absolute)
        its_accuracy = _accuracy(work, form, "cpu")
        if precision == "float32":
            return parity, True, its_accuracy
        other = _load(work, draft, files, "cpu", optimized=False)
        alike = verify.agree(other, form, work.reference, _tolerance(work, "float32"))
        return parity, alike, its_accuracy
    except (ParityError, NotApplicable) as error:
        _leave_out_optimized(work, name, str(error), progress)
        return None, True, None


def _parity(
    work: _ProofState,
    form: Forward,
    precision: Precision,
    kind: DeviceKind,
    progress: Progress,
    so_far: float,
) -> Parity:
    tolerance = _tolerance(work, precision)
    return verify.check_parity(
        form, work.reference, tolerance, progress, torch.device(kind), so_far=so_far
    )


def _operators(work: _ProofState, draft: Draft) -> tuple[OperatorLibrary, ...]:
    """Return the libraries of operators that a server must load for the written files."""
    libraries: set[OperatorLibrary] = set()
    if draft.format == "torchscript":
        for name in draft.files:
            with (work.folder / name).open("rb") as file:
                libraries.update(operators_in(file, name, check_archive(file, name)))
    return tuple(sorted(libraries))


def _tolerance(work: _ProofState, precision: Precision) -> Tolerance:
    tolerance = tolerance_of(precision, work.own, work.options.integer_share)
    return scaled(tolerance, work.reference.scale)


def _load(
    work: _ProofState,
    draft: Draft,
    files: Sequence[VariantFile],
    kind: DeviceKind,
    *,
    optimized: bool,
) -> Forward:
    """Load a form of the written file.

    Raises:
        NotApplicable: if this machine cannot load it.
    """
    inputs = work.subject.definition.inputs
    try:
        return load_form(files, draft.format, inputs, torch.device(kind), optimized=optimized)
    except (OSError, RuntimeError, ArchiveError) as error:
        raise NotApplicable(f"{draft.file} cannot be loaded here: {reason(error)}") from error


def _worse(one: Parity, other: Parity) -> Parity:
    """Return the larger one of each difference."""
    return Parity(
        outputs={
            name: Difference(
                max_absolute=max(mine.max_absolute, other.outputs[name].max_absolute),
                max_relative=max(mine.max_relative, other.outputs[name].max_relative),
            )
            for name, mine in one.outputs.items()
        },
        batch_sizes=one.batch_sizes,
        batch_invariance=max(one.batch_invariance, other.batch_invariance),
        padded_to=one.padded_to,
    )
