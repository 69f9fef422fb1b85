"""What a report says, before it is printed anywhere."""

from __future__ import annotations

import pytest

from export.reports.content import content_of
from export.reports.sections import Section
from models.cpu_layout import Layout, MeasuredLayout, layouts
from models.manifest import Manifest
from models.plan import Plan, Step, extend_steps
from tests.unit.export.measured import (
    MIXED,
    ONE_WINS,
    OPTIMIZED,
    SCRIPT,
    device_plan,
    measured_manifest,
    per_item,
)
from tests.unit.models.manifests import make_manifest

PLAN, TIMES = "Plan on cpu", "Time per item, float32 on cpu"
LAYOUT = MeasuredLayout(
    chosen=Layout(2, 1), layouts=layouts(2), items_per_s=(5700, 9120.4, 98), batch_size=4
)
BUSY = MIXED.model_copy(update={"kept_waiting": 0.37, "unsettled": (2, 4)})
EXTENDED = {precision: extend_steps(steps, 64) for precision, steps in MIXED.steps.items()}
SLOW = device_plan(
    [per_item(SCRIPT, (100, 100, 100)), per_item(OPTIMIZED, (50, 100, 100))],
    Step(up_to=4, form=SCRIPT),
)
WITHOUT = measured_manifest(ONE_WINS).model_copy(
    update={"plan": Plan(precision="int8", devices=(ONE_WINS,))}
)


def section(manifest: Manifest, title: str) -> Section:
    return next(each for each in content_of(manifest).sections if each.title == title)


def row(expected: Section, first: str) -> tuple[str, ...]:
    return next(cells for cells in expected.rows if cells[0] == first)


def test_the_facts_name_time_commit_torch_and_processor() -> None:
    facts = dict(content_of(measured_manifest()).facts)
    assert facts["created at"] == "2026-01-02 03:04:05 UTC"
    assert facts["commit"] == "0" * 40
    assert facts["torch"] == "2.13.0"
    assert facts["measured on (cpu)"] == "A processor, 2 threads"
    assert facts["held-out accuracy, eager"] == "0.9810"
    no_git = measured_manifest().model_copy(update={"git_commit": None})
    assert "not made in a git checkout" in dict(content_of(no_git).facts)["commit"]


@pytest.mark.parametrize(
    ("manifest", "title", "words"),
    [
        (make_manifest(), "Plan", "No form was timed: script runs batches of every size"),
        (measured_manifest(BUSY), PLAN, "Measured under load: other work kept the forwards from"),
        (measured_manifest(BUSY), PLAN, "torchlane tune artifacts/tiny/3"),
        (measured_manifest(BUSY), PLAN, "which form is the fastest at batch 2, 4"),
        (
            measured_manifest(MIXED.model_copy(update={"layout": LAYOUT})),
            PLAN,
            "2 x 1. Items/s in batches of 4, next to a busy event loop: 1 x 1: 5,700, 2 x 1: 9,120",
        ),
        (
            measured_manifest(MIXED.model_copy(update={"steps": EXTENDED})),
            PLAN,
            "Batches of more than 4 were not timed",
        ),
        (WITHOUT, PLAN, "The default precision, int8, has no form on this device"),
        (measured_manifest(), TIMES, "Best single form"),
        (measured_manifest(), TIMES, "no measured batch size is the plan slower"),
        (measured_manifest(ONE_WINS), TIMES, "script runs at every size: no other form wins"),
        (measured_manifest(ONE_WINS), TIMES, "Batch 4: 20.0 us; runner-up script, optimized at"),
        (
            measured_manifest(SLOW),
            TIMES,
            "Slower than the fastest form beyond the noise at",
        ),
        (measured_manifest(), "Time per item, int8 on cpu", "int8 is the only form"),
        (measured_manifest(), "Parity with eager float32", "Allowed for script, compiled: 1e-05"),
        (measured_manifest(), "Parity with eager float32", "Allowed for int8: 0.05"),
    ],
)
def test_sections_have_a_line(manifest: Manifest, title: str, words: str) -> None:
    assert words in "\n".join(section(manifest, title).lines)


def test_a_quiet_machine_is_not_mentioned() -> None:
    lines = section(measured_manifest(), PLAN).lines
    assert not any("under load" in line or "not timed" in line for line in lines)


def test_tables_have_plans_times_variants_and_reasons() -> None:
    manifest = measured_manifest()
    plan = section(manifest, PLAN)
    assert row(plan, "float32, the default")[1] == "1..2 compiled; 3..4 script, optimized at load"
    assert (row(plan, "int8")[1], plan.device) == ("1..4 int8", MIXED)
    times = section(manifest, TIMES)
    titles = [column.title for column in times.columns]
    assert titles[:4] == ["batch", "script", "script, optimized at load", "compiled"]
    spread = ("80.0\n79.2-80.8", "200\n198-202", "40.0*\n39.6-40.4")
    assert row(times, "1") == ("1", *spread, "1.00", "1.00")
    assert row(times, "4")[-2:] == ("1.00", "0.50")
    assert row(section(measured_manifest(SLOW), TIMES), "1")[-2] == "2.00\nbeyond noise"
    variants = section(manifest, "Variants")
    assert row(variants, "int8")[1:] == ("int8.pt", "int8", "31,000", "31 %", "0.9775", "0.35")
    # The share is of the weights in float32, not of compiled files.
    assert row(variants, "script")[4] == "100 %"
    assert row(variants, "compiled")[4:] == ("15x", "0.9810", "0.00")
    parity = section(manifest, "Parity with eager float32")
    figures = ("value", "1.0e-07", "1.0e-06", "5.0e-08", "1..3, 8", "2, 4, 40")
    assert row(parity, "script") == ("script", *figures)
    assert row(parity, "script, optimized at load")[2] == "2.0e-07"
    origin = section(manifest, "How they were made")
    assert row(origin, "int8")[1] == "made as int8, torch 2.13.0"
    assert row(origin, "compiled")[2] == "cpu; x86_64 with avx2, fma"
    assert row(section(manifest, "Left out"), "fp16")[1] == "no such device"
    assert row(section(manifest, "Other files"), "profile-script.txt")[1] == "777"


def test_nothing_is_invented_for_a_model_without_accuracy() -> None:
    variant = make_manifest().variants["script"].model_copy(update={"accuracy": None})
    bare = make_manifest().model_copy(update={"variants": {"script": variant}, "accuracy": None})
    assert row(section(bare, "Variants"), "script")[-2:] == ("-", "-")
    assert not {each.title for each in content_of(bare).sections} & {"Left out", "Other files"}
