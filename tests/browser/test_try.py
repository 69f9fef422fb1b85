"""Try, on the page at /: inputs of each kind become calls, and answers are shown."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import Visits
from tests.browser.conftest import HOSTILE
from tests.e2e.server import PLAIN, Server, running
from tests.integration.test_pictures import SIDE

THREE = Path(__file__).parents[2] / "docs" / "three.png"
# A three, as shares of the pad's side.
STROKES = [(0.3, 0.25), (0.5, 0.17), (0.68, 0.28), (0.62, 0.42), (0.45, 0.48)]
STROKES += [(0.65, 0.55), (0.7, 0.7), (0.52, 0.84), (0.3, 0.75)]
# A file as another program hands it over: dropped on an element, or pasted.
HAND_OVER = """(element, [kind, encoded]) => {
  const octets = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([octets], "three.png", { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  element.dispatchEvent(event);
}"""


def draw_three(page: Page) -> None:
    pad = page.locator("canvas.pad")
    box = pad.bounding_box()
    assert box is not None
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in STROKES]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()


def predict(page: Page) -> Locator:
    """Send what is there; returns the answer."""
    page.get_by_role("button", name="Predict").click()
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_be_visible()
    return answer


def choose(page: Page, model: str) -> None:
    """Choose a model that takes numbers, and wait for its form."""
    page.get_by_label("Model", exact=True).select_option(model)
    expect(page.get_by_role("textbox")).to_be_visible()


def test_a_drawn_three_is_recognised(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    draw_three(page)
    answer = predict(page)
    expect(answer.locator(".top strong")).to_have_text("3")
    expect(answer.get_by_role("table").get_by_role("row").first).to_contain_text("3")
    time = page.get_by_role("region", name="Time")
    for stage in ("Decode", "Queue", "Compute", "Encode", "Server"):
        expect(time.get_by_role("row", name=stage)).to_contain_text("ms")
    expect(time).to_contain_text("1 item")
    same = page.get_by_role("region", name="The same call")
    for program in ("curl", "httpx", "tritonclient", "JavaScript"):
        expect(same).to_contain_text(program)


def test_the_example_is_answered_until_something_is_sent(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    example = page.get_by_role("region", name="Example")
    expect(example.locator(".top")).to_have_text(re.compile(r"^\d in \d+\.\d ms score \d\.\d{4}$"))
    expect(page.get_by_role("region", name="The same call")).to_contain_text("/predict")
    rows = example.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(5)
    page.get_by_role("button", name="Show all 10").click()
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Show the first 5").click()
    expect(rows).to_have_count(5)
    draw_three(page)
    predict(page)
    expect(example).to_have_count(0)


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_dropped_or_pasted_picture_is_recognised(
    visit: Visits, server: Server, kind: str
) -> None:
    page = visit(server.url)
    expect(page.locator("canvas.pad")).to_be_visible()
    encoded = base64.b64encode(THREE.read_bytes()).decode()
    page.locator(".drop").evaluate(HAND_OVER, [kind, encoded])
    pictures = page.get_by_role("list", name="Pictures to send").get_by_role("listitem")
    expect(pictures).to_have_count(1)
    expect(predict(page).locator(".top strong")).to_have_text("3")


def test_equal_pictures_of_a_batch_are_computed_once(
    visit: Visits, models: Path, tmp_path: Path
) -> None:
    with running(models, tmp_path / "log", default_model="digits") as server:
        page = visit(server.url)
        draw_three(page)
        page.get_by_role("button", name="Add to batch").click()
        page.get_by_label("Choose pictures").set_input_files([THREE, THREE])
        answer = predict(page)
        expect(answer.locator(".top strong")).to_have_text(["3 items", "3", "3", "3"])
        expect(answer).to_contain_text("same as item 2")
        time = page.get_by_role("region", name="Time")
        expect(time).to_contain_text("2 items")
        assert server.metric("torchlane_items_computed_total") == 3  # with the example
        predict(page)
        expect(time).to_contain_text("none ran")
        assert server.metric("torchlane_items_computed_total") == 3


@pytest.mark.soak
def test_boxes_are_where_they_were_drawn(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    centre = page.get_by_label("Centre the drawing")
    expect(centre).to_be_checked()
    page.get_by_label("Model", exact=True).select_option("light")
    expect(centre).to_have_count(0)
    box = page.locator("canvas.pad").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"], steps=4)
    page.mouse.up()
    with page.expect_response("**/predict") as answer:
        heads = predict(page).get_by_role("columnheader")
    expect(heads).to_have_text(["x0", "y0", "x1", "y1", "scores"])
    sides = answer.value.json()["prediction"]["outputs"]["boxes"][0]
    # In pixels of the picture that was sent, which is 64 wide: what was drawn stays where it is.
    assert 0 < sides[0] < sides[2] < 32
    assert 0 < sides[1] < sides[3] < 32


def test_an_invalid_input_shows_the_servers_error(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={422})
    choose(page, "double")
    page.get_by_role("textbox").fill("[1, 2, 3]")
    page.get_by_role("button", name="Predict").click()
    wrong = httpx.post(
        f"{server.url}/models/double/predict", json={"input": [1, 2, 3]}, verify=PLAIN
    )
    assert wrong.status_code == 422
    expect(page.get_by_role("alert").first).to_contain_text(wrong.json()["error"])


@pytest.mark.soak
def test_an_output_that_is_a_picture_is_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    choose(page, "segments")
    page.get_by_role("textbox").fill("[1, 2]")
    picture = predict(page).get_by_role("img", name="mask")
    size = picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }")
    assert size == SIDE


@pytest.mark.soak
def test_a_mask_that_cannot_be_drawn_is_shown_as_numbers(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={406})
    choose(page, "segments")
    page.get_by_role("textbox").fill("[300, 2]")
    answer = predict(page)
    expect(answer.get_by_label("JSON")).to_contain_text("[300,300,300,300]")
    expect(page.get_by_text("/models/segments/predict").first).to_be_attached()
    assert "pictures=base64" not in (page.text_content("main") or "")


def test_labels_are_never_rendered_as_html(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    choose(page, "hostile")
    answer = predict(page)
    for label in HOSTILE:
        expect(answer.get_by_role("table")).to_contain_text(label)
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.soak
def test_any_matrix_of_an_output_can_be_selected(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    page.evaluate(
        """async () => {
          const { arrayView } = await import("./page/arrays.js");
          document.querySelector("main").replaceChildren(
            arrayView("map", [[[[1, 2]], [[3, 4]]], [[[5, 6]], [[7, 8]]]]));
        }"""
    )
    expect(page.get_by_role("table")).to_have_text("12")
    fields = page.get_by_role("spinbutton")
    fields.first.fill("1")
    expect(page.get_by_role("table")).to_have_text("56")
    fields.last.fill("1")
    expect(page.get_by_role("table")).to_have_text("78")
    for wrong in ("2", "", "-1", "0.5"):
        fields.first.fill(wrong)
        expect(page.get_by_role("table")).to_have_text("78")


def test_an_error_names_the_field_with_invalid_json(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    choose(page, "double")
    page.get_by_role("textbox").fill("[1, 2")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_role("alert").first).to_contain_text("'x' is not JSON: Expected")
    page.get_by_role("textbox").fill("[1, 2]")
    predict(page)


def test_the_form_keeps_its_input_during_an_outage(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={503})
    choose(page, "double")
    page.route("**/models", lambda route: route.fulfill(status=503, body='{"error": "gone"}'))
    page.get_by_role("tab", name="Watch").click()
    page.get_by_role("tab", name="Try").click()
    gone = page.locator("#panel-try").get_by_text("gone")
    expect(gone).to_be_visible()
    page.get_by_role("textbox").fill("[20, 21]")
    page.unroute("**/models")
    expect(gone).not_to_be_visible()
    expect(page.get_by_role("textbox")).to_have_value("[20, 21]")
