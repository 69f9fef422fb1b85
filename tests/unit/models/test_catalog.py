"""Definitions are imported on demand; a broken one gives one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.catalog import CATALOG
from models.definitions import digits, pairwise
from models.definitions.loading import BrokenDefinition, Definitions

BUILD = """
from dataclasses import replace
from models.definitions.pairwise import DEFINITION
def fail(*arguments):
    {body}
DEFINITION = replace(DEFINITION, {field}=fail)
"""
Add = Callable[[str], Definitions]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Writes a module; returns a catalog with it, as `theirs`, and one that works."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def written(code: str) -> Definitions:
        (tmp_path / "theirs_of_a_test.py").write_text(code)
        monkeypatch.delitem(sys.modules, "theirs_of_a_test", raising=False)
        return Definitions(
            {"theirs": "theirs_of_a_test", "pairwise": "models.definitions.pairwise"}
        )

    return written


def test_every_model_can_be_imported() -> None:
    assert list(CATALOG) == ["digits", "minilm", "pairwise", "residual", "shapes", "snippets"]
    for name in CATALOG:
        assert CATALOG[name].golden_inputs()
    assert CATALOG["digits"].inputs == digits.DEFINITION.inputs


def test_an_unknown_name_is_a_key_error() -> None:
    assert "unknown" not in CATALOG
    with pytest.raises(KeyError):
        CATALOG["unknown"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("\nimport no_such_package_here\n", "the definition of 'theirs' cannot be imported:"),
        ("def broken(:\n", "theirs_of_a_test.py, line 1: SyntaxError: "),
        ("x = 1\n\n1 / 0\n", "theirs_of_a_test.py, line 3: ZeroDivisionError: division by zero"),
        ("raise SystemExit('end')", "theirs_of_a_test.py, line 1: SystemExit: end"),
        ("raise ValueError('one\\ntwo')", "line 1: ValueError: one two"),
        ("x = 1", "theirs_of_a_test.py has no DEFINITION; it needs DEFINITION = Definition(...)"),
        ("DEFINITION = {}", "theirs_of_a_test.py has a dict there; it needs"),
    ],
)
def test_failed_import_names_the_definition(add: Add, code: str, message: str) -> None:
    catalog = add(code)
    assert list(catalog) == ["theirs", "pairwise"]
    assert catalog["pairwise"].inputs == pairwise.DEFINITION.inputs
    with pytest.raises(BrokenDefinition) as caught:
        catalog["theirs"]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.inside", "models.no_such"])
def test_missing_module_is_named(module: str) -> None:
    with pytest.raises(BrokenDefinition) as caught:
        Definitions({"theirs": module})["theirs"]
    assert str(caught.value) == (
        f"the catalog says that 'theirs' is in {module}, which does not exist"
    )


@pytest.mark.parametrize("field", ["build", "random_inputs", "golden_inputs", "example"])
def test_failing_function_of_a_definition_is_named(add: Add, field: str) -> None:
    definition = add(BUILD.format(field=field, body="raise OSError('no network')"))["theirs"]
    arguments = (np.random.default_rng(1), 2) if field == "random_inputs" else ()
    with pytest.raises(BrokenDefinition) as caught:
        getattr(definition, field)(*arguments)
    assert str(caught.value) == (
        f"{field} of the definition of 'theirs' fails: "
        "theirs_of_a_test.py, line 5: OSError: no network"
    )


def test_names_are_listed_without_importing_definitions() -> None:
    code = (
        "import sys; from models.catalog import CATALOG; assert 'digits' in CATALOG; list(CATALOG);"
        "sys.exit('models.definitions.digits' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
