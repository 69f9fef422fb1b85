"""What a report says, before it is printed anywhere."""

from __future__ import annotations

from export.reports.content import content_of
from export.reports.sections import Section
from export.reports.timing_sections import load_lines
from models.cpu_layout import Layout, MeasuredLayout, layouts
from models.manifest import Manifest
from models.plan import Plan, Step
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


def test_each_precision_has_its_plan() -> None:
    plan = section(measured_manifest(), "Plan on cpu")
    assert row(plan, "float32, the default")[1] == "1..2 compiled; 3..4 script, optimized at load"
    assert row(plan, "int8")[1] == "1..4 int8"
    assert plan.device == MIXED


def test_first_variant_runs_without_a_plan() -> None:
    report_section = section(make_manifest(), "Plan")
    assert report_section.lines == ("No form was timed: script runs batches of every size.",)


def test_a_plan_made_under_load_says_what_to_do() -> None:
    busy = MIXED.model_copy(update={"kept_waiting": 0.37})
    report_section = section(measured_manifest(busy), "Plan on cpu").lines
    assert report_section[-2].startswith(
        "Measured under load: other work kept the forwards from running for 37% of the time."
    )
    assert report_section[-1] == (
        "To measure again when the machine is idle: torchlane tune artifacts/tiny/3"
    )
    assert list(load_lines(busy, "a/b"))[-1].endswith("torchlane tune a/b")


def test_machine_too_busy_to_decide_is_reported() -> None:
    busy = MIXED.model_copy(update={"kept_waiting": 0.9, "unsettled": (2, 4)})
    message = (
        "The machine was too busy to tell which form is the fastest at batch 2, 4; there a form "
        "replaces the preferred one only if it was clearly faster."
    )
    assert message in section(measured_manifest(busy), "Plan on cpu").lines


def test_cpu_layout_lists_its_throughput() -> None:
    layout = MeasuredLayout(
        chosen=Layout(2, 1), layouts=layouts(2), items_per_s=(5700, 9120.4, 98), batch_size=4
    )
    result = MIXED.model_copy(update={"layout": layout})
    assert section(measured_manifest(result), "Plan on cpu").lines[-1] == (
        "CPU layout (replicas x threads): 2 x 1. Items/s in batches of 4, next to a busy event "
        "loop: 1 x 1: 5,700, 2 x 1: 9,120, 1 x 2: 98.0."
    )


def test_device_without_the_default_precision_is_reported() -> None:
    manifest = measured_manifest(ONE_WINS)
    manifest = manifest.model_copy(update={"plan": Plan(precision="int8", devices=(ONE_WINS,))})
    assert "The default precision, int8, has no form on this device." in (
        section(manifest, "Plan on cpu").lines
    )


def test_time_table_shows_spread_choice_and_ratios() -> None:
    report_section = section(measured_manifest(), "Time per item, float32 on cpu")
    titles = [column.title for column in report_section.columns]
    assert titles[:4] == ["batch", "script", "script, optimized at load", "compiled"]
    assert row(report_section, "1") == (
        "1",
        "80.0\n79.2-80.8",
        "200\n198-202",
        "40.0*\n39.6-40.4",
        "1.00",
        "1.00",
    )
    assert row(report_section, "4")[2].startswith("30.0*")
    assert row(report_section, "4")[-2:] == ("1.00", "0.50")
    assert any("Best single form" in line and "compiled" in line for line in report_section.lines)
    assert any("no measured batch size is the plan slower" in line for line in report_section.lines)


def test_form_that_always_wins_lists_its_runners_up() -> None:
    lines = section(measured_manifest(ONE_WINS), "Time per item, float32 on cpu").lines
    assert "script runs at every size: no other form wins by more than the noise at any." in lines
    assert "Batch 1: 40.0 us; runner-up script, optimized at load: 60.0 us, 1.50x." in lines
    assert "Batch 4: 20.0 us; runner-up script, optimized at load: 22.0 us, 1.10x." in lines


def test_slower_plan_is_reported() -> None:
    slow = device_plan(
        [per_item(SCRIPT, (100, 100, 100)), per_item(OPTIMIZED, (50, 100, 100))],
        Step(up_to=4, form=SCRIPT),
    )
    report_section = section(measured_manifest(slow), "Time per item, float32 on cpu")
    assert "Slower than the fastest form beyond the noise at batch 1." in report_section.lines
    assert not any("no other form wins" in line for line in report_section.lines)
    assert row(report_section, "1")[-2] == "2.00\nbeyond noise"


def test_variants_have_size_share_accuracy_and_drop() -> None:
    report_section = section(measured_manifest(), "Variants")
    assert row(report_section, "int8") == (
        "int8",
        "int8.pt",
        "int8",
        "31,000",
        "31 %",
        "0.9775",
        "0.35",
    )
    # The share is of the weights in float32, not of compiled files.
    assert row(report_section, "script")[4] == "100 %"
    assert row(report_section, "compiled")[4:] == ("15x", "0.9810", "0.00")
    unlabelled = make_manifest().variants["script"].model_copy(update={"accuracy": None})
    manifest = make_manifest().model_copy(
        update={"variants": {"script": unlabelled}, "accuracy": None}
    )
    assert row(section(manifest, "Variants"), "script")[-2:] == ("-", "-")


def test_parity_is_listed_per_form_with_tolerances() -> None:
    report_section = section(measured_manifest(), "Parity with eager float32")
    expected = ("script", "value", "1.0e-07", "1.0e-06", "5.0e-08", "1..3, 8", "2, 4, 40")
    assert row(report_section, "script") == expected
    assert row(report_section, "script, optimized at load")[2] == "2.0e-07"
    assert "Allowed for script, compiled: 1e-05 + 0.0001 * |value|." in report_section.lines
    assert "Allowed for int8: 0.05 + 0 * |value|." in report_section.lines


def test_variants_list_origin_and_requirements() -> None:
    report_section = section(measured_manifest(), "How they were made")
    assert row(report_section, "int8")[1] == "made as int8, torch 2.13.0"
    assert row(report_section, "compiled")[2] == "cpu; x86_64 with avx2, fma"


def test_left_out_variants_have_reasons_and_files_sizes() -> None:
    assert row(section(measured_manifest(), "Left out"), "fp16")[1] == "no such device"
    assert row(section(measured_manifest(), "Other files"), "profile-script.txt")[1] == "777"
    titles = [each.title for each in content_of(make_manifest()).sections]
    assert "Left out" not in titles
    assert "Other files" not in titles
