"""Try, on the page at /: the programs that make the same call run as they are copied."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.access.entries import PREDICT, make_key
from tests.artifacts import write_artifact
from tests.browser.chromium import Visits
from tests.browser.test_page import use_key
from tests.browser.test_try import THREE, choose, draw_three, predict
from tests.clients.environments import environment
from tests.conftest import Once
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


def run(command: list[str], folder: Path) -> str:
    """What a program prints that has the key."""
    env = os.environ | {"TORCHLANE_KEY": KEY}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


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


GIVE: tuple[Callable[[Page, Path], None], ...] = (
    *(give_drawing, give_text, give_long_texts, give_numbers, give_files),
)
PROGRAMS: dict[str, tuple[str, ...]] = {
    "curl": ("bash", "-c"),
    "Python (httpx)": (sys.executable, "-c"),
    "JavaScript (fetch)": ("node", "--input-type=module", "--eval"),
}
NEEDS = {"curl": "curl", "JavaScript (fetch)": "node"}


def test_each_program_makes_the_same_call(visit: Visits, guarded: Server, tmp_path: Path) -> None:
    page = visit(guarded.url, expected={401})
    use_key(page, KEY)
    expect(page.locator("canvas.pad")).to_be_visible()
    missing = {name for name, needs in NEEDS.items() if shutil.which(needs) is None}
    for give in GIVE:
        give(page, tmp_path)
        shown = json.loads(predict(page).get_by_label("JSON").text_content() or "")
        save(page, tmp_path)
        for program in set(PROGRAMS) - missing:
            code = page.locator(f"pre[aria-label='{program}']").text_content() or ""
            printed = run([*PROGRAMS[program], code], tmp_path)
            if program == "curl":
                assert predictions(json.loads(printed)) == predictions(shown), give
            elif program == "Python (httpx)":
                assert predictions(ast.literal_eval(printed)) == predictions(shown), give
            else:
                assert "prediction" in printed, give
    if missing:
        pytest.skip(f"made, but for {missing}, which are not here")


def test_tritonclient_makes_the_same_call(
    visit: Visits, guarded: Server, tmp_path: Path, once: Once
) -> None:
    python = environment(once, "inference_clients") / "bin" / "python"
    page = visit(guarded.url, expected={401})
    use_key(page, KEY)
    expect(page.locator("canvas.pad")).to_be_visible()
    for give, output in ((give_drawing, "scores"), (give_numbers, "y"), (give_files, "scores")):
        give(page, tmp_path)
        predict(page)
        save(page, tmp_path)
        code = page.locator("pre[aria-label='Python (tritonclient)']").text_content() or ""
        assert run([str(python), "-c", code], tmp_path).startswith(f"{output} [[")
    give_text(page, tmp_path)
    predict(page)
    expect(page.get_by_role("region", name="The same call")).to_contain_text("token ids")
