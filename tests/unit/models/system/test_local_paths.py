"""A URL is no path: everything that takes a path refuses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.system.local_paths import NotLocal, check_local, local_path

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("url", ["s3://bucket/out", "gs://b", "hf://org/name", "abfs+x://a@b/c"])
def test_urls_are_refused_with_their_scheme_only(url: str) -> None:
    with pytest.raises(NotLocal) as refused:
        local_path(url)
    scheme = url.partition("://")[0]
    assert str(refused.value).startswith(f"{scheme}:// is not supported, only local paths are: ")
    assert url not in str(refused.value)


@pytest.mark.parametrize("url", ["models:/digits/3", "models:/a@b", "runs:/0/model"])
def test_urls_of_mlflow_are_refused(url: str) -> None:
    with pytest.raises(NotLocal, match=f"^{url.partition('/')[0]}/ is not supported, only local"):
        local_path(url)


def test_a_file_url_says_what_to_leave_out() -> None:
    with pytest.raises(NotLocal, match="leave out file://"):
        local_path("file:///srv/models")


@pytest.mark.parametrize(
    "path", ["out", "/srv/a b", "./s3://x", "a:b", "models", "models:x", "s3:/x", "://", "in/*.csv"]
)
def test_paths_stay(path: str) -> None:
    check_local(path)
    assert local_path(path) == Path(path)
    assert local_path(Path(path)) == Path(path)


def test_no_option_or_setting_takes_a_path_without_the_check() -> None:
    commands = [
        file for top in ("app", "export", "loadtests") for file in (ROOT / top).rglob("*.py")
    ]
    assert [file for file in commands if "type=Path" in file.read_text()] == []
    setting = re.compile(r"^    \w+: Path\b", re.MULTILINE)
    assert setting.findall((ROOT / "app/settings.py").read_text()) == []
