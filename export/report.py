"""What was made and checked, as a table on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from models.manifest import Manifest


def table_of(manifest: Manifest, folder: Path) -> Table:
    """One row per fact: files, proof, accuracy, where it lies."""
    table = Table(title=f"{manifest.model} version {manifest.version}", title_justify="left")
    table.add_column("what")
    table.add_column("found", overflow="fold")
    for name, variant in manifest.variants.items():
        parity = variant.parity
        size = manifest.files[variant.file].bytes
        table.add_row(f"{name}: file", f"{variant.file}, {size:,} bytes, {variant.precision}")
        table.add_row(f"{name}: made by", f"{variant.made_by}, torch {variant.torch_version}")
        sizes = f"batch {min(parity.batch_sizes)} to {max(parity.batch_sizes)}"
        table.add_row(
            f"{name}: parity with eager",
            f"largest difference {parity.max_absolute:.1e}, {sizes} and golden (allowed: "
            f"{variant.tolerance.absolute:g} + {variant.tolerance.relative:g} * |value|)",
        )
        table.add_row(f"{name}: alone or in a batch", f"differs by {parity.batch_invariance:.1e}")
        if variant.accuracy is not None:
            table.add_row(f"{name}: held-out accuracy", f"{variant.accuracy:.4f}")
    if manifest.accuracy is not None:
        table.add_row("eager: held-out accuracy", f"{manifest.accuracy:.4f}")
    table.add_row("golden examples", str(len(manifest.golden)))
    table.add_row("artifact", str(folder))
    return table
