"""The models file: settings, mistakes with their key, and bad edits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.main import of_models
from app.registry.model_settings import ModelSettings
from app.registry.releases import Release, Shadow
from app.serving.models_file import Entry, ModelsFile, ModelsFileError
from app.settings import Settings

DEFAULTS = ModelSettings(batch_wait_s=0.001, variant="script")
ALL = """
[models.digits]
max_batch_size = 32
batch_wait_ms = 2
queue_limit_items = 500
queue_limit_bytes = "16MiB"
timeout_ms = 200
devices = "cpu, cuda:0"
replicas = 1
precision = "int8"
cache = false
allowed_keys = ["team-a", "team-b"]
python = "/venvs/a/bin/python"
processes = 2
user = "shop"
weights = { 2 = 95, "3" = 0.5 }
sticky = "header:X-User"
shadow = { version = 3, share = 0.1, keep = 20 }
load = "on-demand"
idle_s = 600
required = false

[models."other"]
release = { to = 3, from = 2, every_s = 60, stop_if = { latency_above = 1.5 } }
"""


def models_file(file: Path, text: str, *, asks_for_keys: bool = True) -> ModelsFile:
    file.write_text(text)
    return ModelsFile(file, DEFAULTS, ["cpu", "cuda:0"], asks_for_keys=asks_for_keys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def test_file_overrides_the_defaults(file: Path) -> None:
    models = models_file(file, ALL)
    assert models.of("digits") == ModelSettings(
        max_batch_size=32,
        plan_may_lower=False,
        batch_wait_s=0.002,
        queue_limit_items=500,
        queue_limit_bytes=16 << 20,
        timeout_s=0.2,
        devices=("cpu", "cuda:0"),
        replicas=1,
        precision="int8",
        pinned_by_file=True,
        cache=False,
        allowed_keys=frozenset(("team-a", "team-b")),
        python="/venvs/a/bin/python",
        processes=2,
        user="shop",
        weights={2: 95, 3: 0.5},
        sticky="header:X-User",
        shadow=Shadow(version=3, share=0.1, keep=20),
        on_demand=True,
        idle_s=600,
        set_by_file=frozenset(Entry.model_fields) - {"variant", "release"},
    )
    release = Release.model_validate(
        {"to": 3, "from": 2, "every_s": 60, "stop_if": {"latency_above": 1.5}}
    )
    assert models.of("other") == replace(
        DEFAULTS, release=release, set_by_file=frozenset({"release"})
    )
    assert models.releases() == {"other": release}
    assert models.of("absent") == DEFAULTS
    assert models.required == {"other"}
    assert set(Entry.model_fields) - {"variant"} == {
        line.partition(" = ")[0] for line in ALL.splitlines() if "=" in line
    }


def test_server_and_model_defaults_agree() -> None:
    assert of_models(Settings(_env_file=None)) == ModelSettings()


def test_byte_limits_are_divided_among_processes(file: Path) -> None:
    file.write_text("[models.a]\nqueue_limit_bytes = '16MiB'\n[models.b]\n")
    models = ModelsFile(file, DEFAULTS, ["cpu"], asks_for_keys=False, share_of=lambda n: n // 4)
    assert models.of("a").queue_limit_bytes == 4 << 20
    assert models.of("b") == DEFAULTS


def test_model_cache_needs_the_servers_cache(file: Path) -> None:
    file.write_text("[models.a]\ncache = true\n")
    none = ModelSettings(cache=False)
    assert not ModelsFile(file, none, ["cpu"], asks_for_keys=False).of("a").cache


JUDGED = "{ to = 3, stop_if.agreement_below = 0.9 }"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.a]\nmax_batch_size = 0", "[models.a] max_batch_size = 0: Input should be gr"),
        ("[models.a]\nmax_batch_size = true", "[models.a] max_batch_size = True: Input sho"),
        ("[models.a]\n\nmax_batchsize = 1", "[models.a] max_batchsize is not a model setting"),
        ("[models.a]\nmax_batchsize = 1", "did you mean max_batch_size?"),
        ("[models.a]\nqqqqqqq = 1", "docs/models-file.md lists all"),
        ("[models.a]\ntimeout_ms = '200'", "timeout_ms = '200': Input should be a valid number"),
        ("[models.a]\nprecision = 'fp8'", "Input should be 'float32', 'bf16', 'fp16' or 'int8'"),
        ("[models.a]\nallowed_keys = []", "allowed_keys = []: List should have at least 1 item"),
        ("[models.a]\nallowed_keys = [\n 'x',\n 3]", "[models.a] allowed_keys.1 = 3: Inp"),
        (
            "[models.a]\ndevices = 'gpu'",
            "'gpu' is not a device of this server, which has cpu, cuda:0",
        ),
        ("[models.a]\ndevices = 'cpu*2'", "set their number with `replicas`"),
        ("[models.a]\ndevices = ''", "'' is not a device"),
        ("[models.a]\nweights.3 = -1", "[models.a] weights.3 = -1: Input should be greater"),
        ("[models.a]\nweights.3 = inf", "weights.3 = inf: Input should be a finite number"),
        ("[models.a]\nweights = [95, 5]", "weights = [95, 5]: use a table"),
        ("[models.a]\nweights = { 2 = 0, 3 = 0 }", "at least one weight must be above 0"),
        ("[models.a]\nweights = {}", "at least one weight must be above 0"),
        ("[models.a]\nweights = { new = 5 }", "'new' is not a version; a version is a number"),
        ("[models.a]\nrelease = { to = 3, steps = [1] }", "release.steps = [1]: steps must rise"),
        ("[models.a]\nrelease = { to = 0 }", "release.to = 0: Input should be greater"),
        ("[models.a]\nrelease.to = 1000000000", "Input should be less than or equal to 999999999"),
        ("[models.a]\nrelease = 3", "[models.a] release = 3: use a table"),
        ("[models.a]\nrelease = {}", "[models.a] release.to is missing"),
        (
            "[models.a]\nrelease = { form = 2 }",
            "form is not a model setting; did you mean release.from",
        ),
        (
            "[models.a]\nrelease = { every = 3 }",
            "[models.a] release.every is not a model setting; did you mean release.every_s?",
        ),
        (
            "[models.a]\nrelease.to = 3\nweights.3 = 1",
            "[models.a] release and weights: a release sets the weights itself",
        ),
        (
            f"[models.a]\nrelease = {JUDGED}\nshadow = {{ version = 2, share = 1 }}",
            "[models.a] release and shadow: agreement_below compares version 3, so the shadow must",
        ),
        ("[models.a]\nrelease = { to = 3, stop_if.agreement_below = 0 }", "greater than 0"),
        ("[models.a]\nsticky = 'header:'", 'sticky = \'header:\': use "body", "key" or'),
        ("[models.a]\nsticky = 'header:X User'", 'use "body", "key" or "header:NAME"'),
        ("[models.a]\nload = 'always'\nidle_s = 9", "idle_s: only a model on demand is unloaded"),
        ("[models.a]\nshadow = { version = 3 }", "[models.a] shadow.share is missing"),
        ("[models.a]\nshadow = { version = 3, share = 2 }", "less than or equal to 1"),
        (
            "[models.a]\nshadow = { version = 3, share = 1, keep = 101 }",
            "less than or equal to 100",
        ),
        ("[models.'a b']", "[models] 'a b' is not a valid model name"),
        ("\n[models]\na = 1", "[models] 'a' must be a table, such as [models.a]"),
        ("# x\n[model.a]", "'model' is unknown; use tables such as [models.digits]"),
        ("[models.a]\n[models.a]", "(at line 2, column 10)"),
        ("[models.a]\ncache = yes", "(at line 2, column 9)"),
        ("\xff", "codec can't decode"),
        ("x = " + "[" * 100_000 + "]" * 100_000, "values are nested too deeply"),
        (f"[models.a]\ndevices{'.x' * 5000} = 1", "values are nested too deeply"),
    ],
)
def test_mistakes_are_reported_with_their_key(file: Path, text: str, told: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelsFileError) as caught:
        ModelsFile(file, DEFAULTS, ["cpu", "cuda:0"], asks_for_keys=True)
    assert str(caught.value).startswith(f"TORCHLANE_MODELS_FILE={file}:")
    assert told in str(caught.value)


def test_all_mistakes_are_listed(file: Path) -> None:
    text = "[models.b]\nreplicas = 0\ncach = 1\n[models.a]\nallowed_keys = ['x']\n"
    with pytest.raises(ModelsFileError) as caught:
        models_file(file, text, asks_for_keys=False)
    lines = str(caught.value).splitlines()[1:]
    assert [line[: line.index("]") + 6] for line in lines] == [
        "  [models.b] repl",
        "  [models.b] cach",
        "  [models.a] allo",
    ]
    assert "this server has no API keys; set TORCHLANE_API_KEYS_FILE" in lines[2]


@pytest.mark.parametrize("size", [None, (1 << 20) + 1])
def test_unreadable_file_refuses_the_start(file: Path, size: int | None) -> None:
    if size is not None:
        file.write_bytes(b"#" * size)
    with pytest.raises(ModelsFileError, match=r"No such file|at most 1,048,576 are read"):
        ModelsFile(file, DEFAULTS, ["cpu"], asks_for_keys=False)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_no_regular_file_refuses_the_start(file: Path, make: Callable[[Path], None]) -> None:
    make(file)
    with pytest.raises(ModelsFileError, match=r"pipe or a device|Is a directory"):
        ModelsFile(file, DEFAULTS, ["cpu"], asks_for_keys=False)


def test_bad_edit_is_logged_once_and_ignored(file: Path) -> None:
    models = models_file(file, "[models.a]\nreplicas = 2\n")
    with capture_logs() as logs:
        for text in ("[models.a]\nreplicas = 0\n", None):
            file.unlink() if text is None else file.write_text(text)
            for _ in range(3):
                models.look()
            assert models.problem is not None
            assert models.of("a").replicas == 2
            assert models.required == {"a"}
        file.write_text("[models.a]\nreplicas = 0\n")
        models.look()
        file.write_text("[models.a]\nreplicas = 3\n")
        models.look()
        models.look()
    assert (models.of("a").replicas, models.problem) == (3, None)
    assert [log["event"] for log in logs] == ["models_file_not_taken"] * 3 + ["models_file_taken"]


def test_half_written_file_grants_no_access(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_file(file, "[models.a]\nallowed_keys = ['x']\n")
    rest = ["[models.a]\nallowed_keys = ['y']\n"]

    def goes_on(_: float) -> None:
        file.write_text(file.read_text() + (rest.pop() if rest else ""))

    monkeypatch.setattr("app.serving.models_file.time.sleep", goes_on)
    file.write_text("")
    models.look()
    assert models.of("a").allowed_keys == frozenset({"y"})
    file.write_text("")  # and nothing follows
    models.look()
    assert models.of("a").allowed_keys == frozenset({"y"})
    assert "empty file" in str(models.problem)


def test_server_settings_apply_without_a_file() -> None:
    models = ModelsFile(None, DEFAULTS, ["cpu"], asks_for_keys=False)
    models.look()
    assert models.of("any") is DEFAULTS
    assert (models.required, models.problem) == (frozenset(), None)


def test_many_mistakes_are_counted(file: Path) -> None:
    with pytest.raises(ModelsFileError) as caught:
        models_file(file, "".join(f"[models.m{n}]\ncach = 1\n" for n in range(30)))
    first, *_, last = str(caught.value).splitlines()[1:]
    assert first.startswith("  [models.m0] cach is not a model setting")
    assert last == "  and 10 more mistakes"
    with pytest.raises(ModelsFileError) as caught:
        models_file(file, "# " + "x" * 100_000 + "\n[models.a]\nvariant = ['" + "y" * 1000 + "']")
    _, told = str(caught.value).splitlines()
    assert told.startswith("  [models.a] variant = ['yyy")
    assert len(told) < 600
