"""The plot of a report."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from export.reports.plot import svg_of
from models.plan import Form, Step
from models.processor import Processor
from tests.unit.export.measured import MIXED, SCRIPT, device_plan, per_item

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def svg() -> str:
    return svg_of(MIXED, "cpu")


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]


def test_it_is_one_labelled_svg_element(svg: str) -> None:
    root = ET.fromstring(svg)
    title = root.find(f"{SVG}title")
    assert (root.tag, root.attrib["role"]) == (f"{SVG}svg", "img")
    assert title is not None
    assert title.text == "Time per item on A processor, 2 threads"
    words = {"batch size (items)", "time per item (us)", "the plan's form, per precision"}
    assert words | {str(times.form) for times in MIXED.times} | {"1", "2", "4"} <= {*texts(svg)}


def test_all_colours_come_from_the_style_sheet(svg: str) -> None:
    assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []
    assert "currentColor" in svg
    assert {f"var(--series-{index})" for index in range(3)} <= set(re.findall(r"var\([^)]*\)", svg))


def test_plots_that_are_unusual_are_drawn() -> None:
    forms = [Form(variant=f"v{index}") for index in range(10)]  # more than colours
    many = [per_item(form, (10 + index,)) for index, form in enumerate(forms)]
    assert "v9" in texts(svg_of(device_plan(many, Step(up_to=1, form=forms[0])), "many"))
    words = texts(svg_of(device_plan([per_item(SCRIPT, (61, 62, 63))]), "close"))
    assert {"50", "100"} <= set(words)
    assert "the plan's form, per precision" not in words


def test_plot_is_reproducible_without_a_date(svg: str) -> None:
    assert svg_of(MIXED, "cpu") == svg
    assert "<metadata" not in svg
    assert "date" not in svg.lower()


def test_prefix_separates_the_ids_of_two_plots(svg: str) -> None:
    other = svg_of(MIXED, "cuda")
    ids = [set(re.findall(r'\bid="([^"]*)"', each)) for each in (svg, other)]
    assert not ids[0] & ids[1]
    for each, own in zip((svg, other), ids, strict=True):
        assert set(re.findall(r"(?:url\(|href=\")#([^\")]*)", each)) <= own


def test_a_hostile_name_stays_text() -> None:
    name = '</title><script>alert("x")</script> $\\frac{1$'
    device = MIXED.model_copy(update={"processor": Processor(kind="cpu", name=name, threads=1)})
    svg = svg_of(device, "cpu")
    assert "<script" not in svg
    assert name in "".join(ET.fromstring(svg).itertext())
