"""The package that wheels have: imports and names of modules as they are within it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.package import PackageError, build, rewritten


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from app.types import Row", "from torchlane.app.types import Row"),
        ("x = 1; from models import plan", "x = 1; from torchlane.models import plan"),
        ("if x:\n    from app import (\n        a,\n    )", None),
        ("import export", "from torchlane import export"),
        ("import export as e", "from torchlane import export as e"),
        ("é = 'é'; from app import main", "é = 'é'; from torchlane.app import main"),
        ("run('app.bulk', \"app.main:create_app\")", None),
        ("M = {'digits': 'models.definitions.digits'}", None),
    ],
)
def test_names_are_those_within_the_package(source: str, expected: str | None) -> None:
    if expected is None:
        expected = source.replace("from app", "from torchlane.app")
        expected = expected.replace("'app.", "'torchlane.app.").replace('"app.', '"torchlane.app.')
        expected = expected.replace("'models.", "'torchlane.models.")
    assert rewritten(source.encode(), "m.py").decode() == expected


@pytest.mark.parametrize(
    "source",
    [
        "import os, sys",
        "from application import app",
        "import models_of_mine",
        "x = 'app'",
        "x = 'app.'",
        "x = 'the app.types module'",
        "x = 'models/app.py'",
        "x = f'app.{y}'",
        "x = app.types",
    ],
)
def test_all_else_stays(source: str) -> None:
    assert rewritten(source.encode(), "m.py").decode() == source


@pytest.mark.parametrize("source", ["import app.types", "import os, export"])
def test_an_import_that_would_bind_another_name_is_refused(source: str) -> None:
    with pytest.raises(PackageError, match=r"m\.py:2: .*write `from PACKAGE import MODULE`"):
        rewritten(f"\n{source}".encode(), "m.py")


def test_a_checkout_without_some_packages_has_the_others(tmp_path: Path) -> None:
    for name in ("torchlane", "app"):
        (tmp_path / name / "__pycache__").mkdir(parents=True)
        (tmp_path / name / "__pycache__" / "x.pyc").touch()
        (tmp_path / name / "x.py").write_text("from app import y\n")
    (tmp_path / "app" / "page.html").write_text("from app import y")
    package = build(tmp_path, tmp_path / "out")
    files = {
        str(each.relative_to(package)): each.read_text()
        for each in package.rglob("*")
        if each.is_file()
    }
    moved = "from torchlane.app import y\n"
    assert files == {"x.py": moved, "app/x.py": moved, "app/page.html": "from app import y"}
