"""The content of a report, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from export.reports.pictures import steps_of
from export.reports.sections import Column, Section
from export.reports.timing_sections import plan_sections
from export.reports.training_sections import training_sections
from models.codec_specs import AudioCodecSpec, ImageCodecSpec, TextCodecSpec
from models.manifest import Manifest, Parity, Variant
from models.plan import Form


@dataclass(frozen=True, slots=True)
class Content:
    """The whole report; `facts` are pairs of a word and its value."""

    title: str
    description: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def content_of(manifest: Manifest) -> Content:
    """Return everything in the manifest, in the order of a reader's questions."""
    return Content(
        title=f"{manifest.model} version {manifest.version}",
        description=manifest.description,
        facts=tuple(_facts(manifest)),
        sections=(
            *plan_sections(manifest),
            _files_of_variants(manifest),
            _parity(manifest),
            _making(manifest),
            *training_sections(manifest.training),
            *_left_out(manifest),
            *_other_files(manifest),
        ),
    )


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "created at", manifest.created_at.strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    yield "commit", manifest.git_commit or "unknown: not made in a git checkout"
    versions = sorted({variant.torch_version for variant in manifest.variants.values()})
    yield "torch", ", ".join(versions)
    for device in manifest.plan.devices if manifest.plan else ():
        yield f"measured on ({device.processor.kind})", str(device.processor)
    yield "inputs", "; ".join(map(str, manifest.inputs))
    yield "outputs", "; ".join(map(str, manifest.outputs))
    if isinstance(manifest.codec, ImageCodecSpec):
        yield "pictures", steps_of(manifest.codec.preprocess)
    if isinstance(manifest.codec, AudioCodecSpec):
        how = manifest.codec.resampling
        others = "of that rate only" if how == "none" else f"others resampled by {how}"
        yield "sounds", f"one channel of {manifest.codec.rate} samples per second; {others}"
    if manifest.accuracy is not None:
        yield f"held-out {quality(manifest)}, eager", f"{manifest.accuracy:.4f}"
    yield "golden examples", str(len(manifest.golden))
    if manifest.real_inputs:
        yield "real inputs", manifest.real_inputs


def _files_of_variants(manifest: Manifest) -> Section:
    against = _largest_full(manifest)
    columns = [Column("variant"), Column("file"), Column("precision")]
    titles = ("bytes", "of float32", quality(manifest), "drop, points")
    columns += [Column(title, numeric=True) for title in titles]
    rows = []
    for name, variant in manifest.variants.items():
        size = sum(manifest.files[file].bytes for file in variant.files)
        share = _share(size, against)
        accuracy, drop = _accuracy(variant, manifest.accuracy)
        files = ", ".join(variant.files)
        rows.append((name, files, variant.precision, f"{size:,}", share, accuracy, drop))
    return Section(
        title="Variants",
        lines=(
            "Shares are of the largest float32 file, TorchScript if there is one.",
            "The drop is against eager, on held-out data.",
        ),
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _share(size: int, against: int) -> str:
    if not against:
        return "-"
    return f"{100 * size / against:.0f} %" if size < 10 * against else f"{size / against:,.0f}x"


def _largest_full(manifest: Manifest) -> int:
    """Return the bytes of the largest float32 file, compiled only if there is no other; or 0."""
    sizes = [
        (variant.format == "torchscript", sum(manifest.files[f].bytes for f in variant.files))
        for variant in manifest.variants.values()
        if variant.precision == "float32"
    ]
    return max(sizes, default=(False, 0))[1]


def _accuracy(variant: Variant, eager: float | None) -> tuple[str, str]:
    if variant.accuracy is None:
        return "-", "-"
    drop = "-" if eager is None else f"{100 * (eager - variant.accuracy) + 0.0:.2f}"
    return f"{variant.accuracy:.4f}", drop


def _parity(manifest: Manifest) -> Section:
    rows: list[tuple[str, ...]] = []
    tolerances: dict[str, list[str]] = {}
    for name, variant in manifest.variants.items():
        tolerances.setdefault(str(variant.tolerance), []).append(name)
        rows += _parity_rows(Form(variant=name), variant.parity)
        if variant.optimized is not None:
            rows += _parity_rows(Form(variant=name, optimized=True), variant.optimized)
    return Section(
        title="Parity with eager float32",
        lines=(
            "The largest differences over batches of these sizes and the golden examples.",
            *(f"Allowed for {', '.join(names)}: {text}." for text, names in tolerances.items()),
        ),
        columns=(
            Column("form"),
            Column("output"),
            Column("max abs", numeric=True),
            Column("max rel", numeric=True),
            Column("alone, batched or padded", numeric=True),
            Column("batches"),
            Column("padded to"),
        ),
        rows=tuple(rows),
    )


def _parity_rows(form: Form, parity: Parity) -> Iterator[tuple[str, ...]]:
    for output, difference in parity.outputs.items():
        yield (
            str(form),
            output,
            f"{difference.max_absolute:.1e}",
            f"{difference.max_relative:.1e}",
            f"{parity.batch_invariance:.1e}",
            ranges(parity.batch_sizes),
            ranges(parity.padded_to) or "-",
        )


def _making(manifest: Manifest) -> Section:
    return Section(
        title="How they were made",
        columns=(Column("variant"), Column("made by"), Column("runs on")),
        rows=tuple(
            (name, f"{variant.made_by}, torch {variant.torch_version}", _runs_on(variant))
            for name, variant in manifest.variants.items()
        ),
    )


def _runs_on(variant: Variant) -> str:
    parts = [", ".join(variant.device_kinds)]
    if variant.native is not None:
        native = variant.native
        parts.append(f"{native.architecture} with {', '.join(native.requires) or 'no extensions'}")
    return "; ".join(parts)


def _left_out(manifest: Manifest) -> Iterator[Section]:
    if manifest.left_out:
        yield Section(
            title="Left out",
            columns=(Column("variant"), Column("reason")),
            rows=tuple((each.variant, each.reason) for each in manifest.left_out),
        )


def _other_files(manifest: Manifest) -> Iterator[Section]:
    variants = {file for variant in manifest.variants.values() for file in variant.files}
    others = sorted(set(manifest.files) - variants)
    if others:
        yield Section(
            title="Other files",
            columns=(Column("file"), Column("bytes", numeric=True)),
            rows=tuple((name, f"{manifest.files[name].bytes:,}") for name in others),
        )


def quality(manifest: Manifest) -> str:
    """Return the name of the accuracy on held-out data; for embeddings: cosine with eager's."""
    codec = manifest.codec
    return "cosine" if isinstance(codec, TextCodecSpec) and codec.task == "embed" else "accuracy"


def ranges(sizes: Collection[int]) -> str:
    """Format whole numbers, with neighbours combined: `1..8, 16`."""
    runs: list[list[int]] = []
    for size in sorted(set(sizes)):
        if runs and size == runs[-1][-1] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
