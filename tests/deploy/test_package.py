"""The package that wheels have: imports and names of modules as they are within it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy import wheel
from deploy.package import PackageError, build, rewritten

METADATA: Any = None  # not read here


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


def test_only_tracked_files_of_a_checkout_are_in_the_package(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    (root / "torchlane").mkdir(parents=True)
    for name in ("known.py", "deleted.py", "unknown.py", "secret.pem"):
        (root / "torchlane" / name).touch()
    for command in (["init", "--quiet"], ["add", "torchlane/known.py", "torchlane/deleted.py"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "torchlane" / "deleted.py").unlink()
    with pytest.raises(PackageError, match=r"git does not track torchlane/unknown\.py"):
        build(root, tmp_path / "out")
    (root / "torchlane" / "unknown.py").unlink()
    package = build(root, tmp_path / "out")
    assert [each.name for each in package.iterdir()] == ["known.py"]
    (root / ".git" / "index").write_bytes(b"broken")
    with pytest.raises(PackageError, match="git cannot list the files of"):
        build(root, tmp_path / "again")


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


def test_two_wheels_that_are_built_at_once_do_not_share_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel, "PURE", "1")
    packages = []
    hooks = []
    for _ in range(2):
        hook = wheel.BuildHook("", {}, None, METADATA, "", "wheel")
        files: dict[str, str] = {}
        hook.initialize("standard", {"force_include": files})
        hooks.append(hook)
        packages += [Path(file) for file, name in files.items() if name == "torchlane"]
    assert len(set(packages)) == 2
    assert all((each / "app" / "main.py").exists() for each in packages)
    for hook in hooks:
        hook.finalize("standard", {}, "")
    assert not any(each.exists() for each in packages)
