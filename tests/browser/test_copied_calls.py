"""Try, on the page at /: the programs that make the same call run as they are copied."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from app.access.entries import PREDICT, make_key
from tests.artifacts import write_artifact
from tests.browser.chromium import Visits
from tests.browser.test_page import use_key
from tests.browser.test_try import THREE, choose, draw_three, predict
from tests.conftest import Once
from tests.docs.blocks import ROOT
from tests.e2e.server import Server, running
from tests.texts import write_text

KEY, LINE = make_key("caller", [PREDICT])
ODD_NAMES = ('it\'s a "three"; no\\2, or $HOME.png', "plain.png")
ODD_TEXT = 'It\'s a `cat` of "$HOME"\\\n\tand %s: é, 😀, \u2028 or !1'


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Server]:
    """A server with a key, and a model of each kind of input."""
    folder = tmp_path_factory.mktemp("kinds")
    shutil.copytree(models / "digits", folder / "digits")
    write_artifact(folder, "double")
    write_text(folder, "text")
    with running(folder, folder.parent / "log", default_model="digits", api_keys=LINE) as server:
        yield server


def choose_digits(page: Page) -> None:
    page.get_by_label("Model", exact=True).select_option("digits")
    expect(page.locator("canvas.pad")).to_be_visible()


def give_files(page: Page, folder: Path) -> None:
    for name in ODD_NAMES:
        shutil.copy(THREE, folder / name)
    choose_digits(page)
    page.get_by_label("Choose pictures").set_input_files([folder / name for name in ODD_NAMES])
    expect(page.get_by_role("list", name="Pictures to send").get_by_role("listitem")).to_have_count(
        len(ODD_NAMES)
    )


def give_drawing(page: Page, _: Path) -> None:
    choose_digits(page)
    draw_three(page)


def give_text(page: Page, _: Path) -> None:
    choose(page, "text")
    page.get_by_role("textbox").fill(ODD_TEXT)


def give_long_texts(page: Page, folder: Path) -> None:
    give_text(page, folder)
    page.get_by_role("button", name="Add another").click()
    page.get_by_role("textbox").last.fill("cat " * 10_000)


def give_numbers(page: Page, _: Path) -> None:
    choose(page, "double")
    page.get_by_role("textbox").fill("[1.5,\n -2e1]")


def save(page: Page, folder: Path) -> None:
    """Save the files that the programs read and the user does not have."""
    links = page.get_by_role("region", name="The same call").locator("a[download]")
    for link in links.all():
        with page.expect_download() as started:
            link.click()
        started.value.save_as(folder / started.value.suggested_filename)


def predictions(answer: Any) -> Any:
    """What an answer holds, wherever it was kept."""
    return answer.get("prediction") or answer["predictions"]


class Call(NamedTuple):
    """A call that the page made.

    Attributes:
        folder: with the files that its programs read.
        prediction: what the page shows.
        programs: by their titles; None for what has no such program.
    """

    folder: Path
    prediction: Any
    programs: dict[str, str | None]


@pytest.fixture(scope="module")
def calls(
    browser: Browser, guarded: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Call]]:
    """One call of each kind."""
    visits = Visits(browser, "copied calls")
    page = visits(guarded.url, expected={401})
    use_key(page, KEY)
    expect(page.locator("canvas.pad")).to_be_visible()
    made = []
    for give in (give_drawing, give_text, give_long_texts, give_numbers, give_files):
        folder = tmp_path_factory.mktemp(give.__name__)
        give(page, folder)
        shown = json.loads(predict(page).get_by_label("JSON").text_content() or "")
        save(page, folder)
        programs = {
            title: code.text_content()
            if (code := page.get_by_label(title, exact=True)).count()
            else None
            for title in TITLES
        }
        made.append(Call(folder, predictions(shown), programs))
    yield made
    visits.close()


CURL, HTTPX, TRITON, FETCH = TITLES = (
    *("curl", "Python (httpx)", "Python (tritonclient)", "JavaScript (fetch)"),
)
END = "-- end of a call --"
# Each starts its interpreter once, and runs every call in the call's folder.
PYTHON = """
import os, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    exec(open("call").read(), {})
    print(END)
"""
NODE = """
for (const folder of process.argv.slice(1)) {
  process.chdir(folder);
  await import(folder + "/call.mjs");
  console.log(END);
}
"""


def run(command: Sequence[str], calls: Sequence[Call], title: str, **variables: str) -> list[str]:
    """What the program of each call prints."""
    for call in calls:
        code = call.programs[title] or ""
        (call.folder / "call").write_text(code)
        (call.folder / "call.mjs").write_text(code)
    done = subprocess.run(
        [*command, *(str(call.folder) for call in calls)],
        env=os.environ | {"TORCHLANE_KEY": KEY} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = done.stdout.split(f"{END}\n")
    assert printed.pop() == ""
    return printed


def needs(program: str) -> str:
    return shutil.which(program) or pytest.skip(f"needs {program}")


def test_curl_makes_the_same_call(calls: list[Call]) -> None:
    each = f'for folder; do cd "$folder"; . ./call; echo; echo "{END}"; done'
    printed = run([needs("bash"), "-ec", each, needs("curl")], calls, CURL)
    answers = [predictions(json.loads(text)) for text in printed]
    assert answers == [call.prediction for call in calls]


def test_httpx_makes_the_same_call(calls: list[Call]) -> None:
    printed = run([sys.executable, "-c", PYTHON.replace("END", repr(END))], calls, HTTPX)
    answers = [predictions(ast.literal_eval(text)) for text in printed]
    assert answers == [call.prediction for call in calls]


def test_fetch_makes_the_same_call(calls: list[Call]) -> None:
    command = [needs("node"), "--input-type=module", "--eval", NODE.replace("END", repr(END)), "--"]
    assert all("prediction" in text for text in run(command, calls, FETCH))


@pytest.fixture
def tritonclient(once: Once) -> Path:
    """A folder with the client; its other dependencies are those of the tests' environment."""
    pins = (ROOT / "tests/clients/inference_clients.txt").read_text().splitlines()
    packages = [pin for pin in pins if pin.startswith(("tritonclient=", "python-rapidjson="))]

    def fill(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command = [*pip, "--target", str(folder), *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"tritonclient cannot be installed: {done.stderr[-500:]}")

    return once("tritonclient", fill)


def test_tritonclient_makes_the_same_call(calls: list[Call], tritonclient: Path) -> None:
    carried = [call for call in calls if call.programs[TRITON]]
    command = [sys.executable, "-c", PYTHON.replace("END", repr(END))]
    printed = run(command, carried, TRITON, PYTHONPATH=str(tritonclient))
    assert [text.partition(" [[")[0] for text in printed] == ["scores", "y", "scores"]
    assert {call.folder.name[:-1] for call in calls if call not in carried} == {
        "give_text",
        "give_long_texts",
    }
