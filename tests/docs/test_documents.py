"""What the documents list is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import errors
from app.__main__ import main as serve
from app.api.error_handlers import HTTP_CODES
from app.api.errors import STATUS
from app.api.page.snapshot import Change, read, snapshot, totals, version
from app.metrics import Metrics
from app.metrics.gauges import ModelGauges
from app.registry.loaded_models import ModelState, VersionStatus
from app.registry.model_settings import ModelSettings
from app.registry.releases import Release, StopIf
from app.serving.models_file import Entry, ModelsFile
from app.settings import PREFIX, Settings
from app.types import ModelId
from models.system.command_lines import flag_of

ROOT = Path(__file__).parents[2]
PROGRAMS = ("app", "export", "loadtests", "models")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def rows(document: str) -> list[list[str]]:
    """The cells of every table row whose first cell is code."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    return [[cell.strip() for cell in ln.strip("|").split("|")] for ln in lines if ln[:3] == "| `"]


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {cells[0].strip("`"): cells[1].strip("`") for cells in rows("settings.md")}
    defaults = {PREFIX + name.upper(): f.default for name, f in Settings.model_fields.items()}
    assert set(documented) == set(defaults)
    for name, default in defaults.items():
        if default is not None:
            shown = documented[name]
            same = Settings.model_validate({name.removeprefix(PREFIX).lower(): shown})
            assert getattr(same, name.removeprefix(PREFIX).lower()) == default, name


def test_settings_have_the_same_groups_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve(arguments=["--help"])
    shown: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if re.fullmatch(r"\w.*:", line):
            flags = shown.setdefault(line[:-1], [])
        elif line.startswith("  --"):
            flags.append(line.split()[0])
    documented: dict[str, list[str]] = {"options": []}
    for line in (ROOT / "docs/settings.md").read_text().splitlines():
        if line.startswith("## "):
            flags = documented.setdefault(line[3:], [])
        elif line.startswith(f"| `{PREFIX}"):
            name = line.split("`")[1].removeprefix(PREFIX).lower()
            flags += [flag_of(name)] if Settings.model_fields[name].repr else []
    assert shown == {heading: flags for heading, flags in documented.items() if heading in shown}
    assert sum(map(len, shown.values())) == sum(
        each.repr for each in Settings.model_fields.values()
    )


def test_every_setting_of_a_model_is_documented(tmp_path: Path) -> None:
    documented = {cells[0].strip("`"): cells[1].strip("`") for cells in rows("models-file.md")}
    assert set(documented) == set(Entry.model_fields)
    release = documented.pop("release")  # instead of weights
    examples = "".join(f"{key} = {value}\n" for key, value in documented.items())
    file = tmp_path / "file"
    file.write_text(f"[models.a]\n{examples}[models.b]\nrelease = {release}\n")
    settings = ModelsFile(file, ModelSettings(), ["cuda:0", "cuda:1"], asks_for_keys=True)
    assert settings.of("a") != ModelSettings()


def test_the_examples_of_a_models_file_suit_every_server(tmp_path: Path) -> None:
    text = "".join((ROOT / "docs" / each).read_text() for each in ("models-file.md", "releases.md"))
    examples = re.findall(r"```toml\n(.*?)```", text, re.S)
    read = []
    for example in examples:
        (tmp_path / "file").write_text(example)
        read.append(ModelsFile(tmp_path / "file", ModelSettings(), ["cpu"], asks_for_keys=False))
    settings, weights, release, shadow = read
    assert settings.of("digits").max_batch_size == 32
    assert not settings.of("embeddings").cache
    assert weights.of("digits").weights == {2: 95, 3: 5}
    assert release.of("digits").release is not None
    assert shadow.of("digits").shadow is not None


def test_every_key_of_a_release_is_documented() -> None:
    documented = {cells[0].strip("`") for cells in rows("releases.md") if "POST" not in cells[0]}
    keys = {each.alias or name for name, each in Release.model_fields.items()} - {"stop_if"}
    assert documented == keys | {f"stop_if.{name}" for name in StopIf.model_fields}


def test_every_error_is_documented_with_its_status() -> None:
    documented = {cells[0].strip("`"): int(cells[1]) for cells in rows("errors.md")}
    wanted = {kind.code: status for kind, status in STATUS.items()}
    wanted |= {code: status for status, code in HTTP_CODES.items()} | {"internal": 500}
    assert documented == wanted


def test_every_error_for_callers_has_a_status() -> None:
    def below(kind: type[errors.TorchlaneError]) -> set[type[errors.TorchlaneError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    # A class with a code of its own is one that a caller can tell from others.
    told_apart = {kind for kind in below(errors.TorchlaneError) if "code" in vars(kind)}
    assert told_apart - {errors.TorchlaneError} == set(STATUS)
    assert not told_apart & below(errors.BackendError)


def test_every_metric_is_documented() -> None:
    documented = {cells[0].strip("`").removesuffix("_total") for cells in rows("metrics.md")}
    families = {family.name for family in Metrics().registry.collect()}
    assert documented == {name for name in families if name.startswith("torchlane_")}


def test_every_field_of_the_live_data_is_documented() -> None:
    def fields(found: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in found.items():
            if isinstance(value, list):
                yield from fields(value[0], f"{prefix}{name}[].")
            elif isinstance(value, dict) and name not in by_code_or_bound:
                yield from fields(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    by_code_or_bound = {"failed_per_s", "failed_total", "failed_items", "latency_ms"}
    metrics, model = Metrics(), ModelId("digits", 1)
    metrics.model(model).count_failure(1.0)
    metrics.add_model(model, ModelGauges(*[lambda: 1.0] * len(ModelGauges._fields)))
    metrics.replica("cuda:0#0", "cuda:0", lambda: True)
    metrics.device("cuda:0", {"memory_bytes": lambda: 1.0})
    reading = read(metrics.registry)
    found = snapshot(Change(reading, reading, 1.0), {})
    found["totals"] = totals(reading, [model])
    found["versions"] = [version(VersionStatus(model, ModelState.LOADING), hides_detail=False)]
    documented = [cells[0].strip("`") for cells in rows("page.md")]
    assert sorted(documented) == sorted(["at", *fields(found)])


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/security.md"])
def test_every_cited_test_exists(document: str) -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", (ROOT / document).read_text())
    assert len(names) > 15
    assert [name for name in names if f"def {name}(" not in code] == []


def test_every_defended_attack_cites_a_test() -> None:
    text = (ROOT / "docs/security.md").read_text()
    table = text.partition("## What is defended")[2].partition("\n## ")[0]
    attacks = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(attacks) > 15
    assert [line for line in attacks if "`test_" not in line.rpartition(" | ")[2]] == []


def test_every_file_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = (*PROGRAMS, "torchlane", "deploy", "tests")
    files = [
        f"/{path.relative_to(ROOT)}" for name in folders for path in (ROOT / name).rglob("*.py")
    ]
    named = set(re.findall(r"[\w/]*\w\.py\b", text))
    assert len(named) > 50
    assert [each for each in named if not any(file.endswith(f"/{each}") for file in files)] == []


def test_every_contract_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    contracts = re.findall(r'^name = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    flat = " ".join(text.replace("\\_", "_").split())
    named = re.findall(r"\*([^*]+)\*", " ".join(re.findall(r"\(contracts? ([^)]+)\)", flat)))
    assert len(named) > 5
    assert [name for name in named if name not in contracts] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_linked_file_exists(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_linked_heading_exists() -> None:
    missing = []
    for document in DOCUMENTS:
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", document.read_text()):
            target = document.parent / file if file else document
            if target.suffix == ".md" and anchor not in anchors(target):
                missing.append(f"{document.relative_to(ROOT)}: {file}#{anchor}")
    assert missing == []


def anchors(document: Path) -> set[str]:
    """The fragments of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs/README.md"
    listed = {index.parent / target for target in re.findall(r"\]\(([^)#]+)", index.read_text())}
    assert set((ROOT / "docs").rglob("*.md")) - listed == {index}


def test_every_variable_in_the_documents_exists() -> None:
    kinds = ("*.py", "*.yml", "*.yaml", "*.cfg", "Makefile", "Dockerfile")
    files = [file for kind in kinds for file in ROOT.glob(kind)]
    for folder in (*PROGRAMS, "deploy", "torchlane"):
        files += [file for kind in kinds for file in (ROOT / folder).rglob(kind)]
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {name for file in files for name in re.findall(r"TORCHLANE_\w+", file.read_text())}
    for document in DOCUMENTS:
        named = set(re.findall(r"\bTORCHLANE_[A-Z_]*[A-Z]\b", document.read_text()))
        assert named - known == set(), document


def test_every_class_in_the_glossary_exists() -> None:
    words = re.findall(r"^\| .*?`([A-Z]\w+)`.* \| ", (ROOT / "docs/glossary.md").read_text(), re.M)
    files = [path for name in PROGRAMS for path in (ROOT / name).rglob("*.py")]
    code = "".join(path.read_text() for path in files)
    assert len(words) > 40
    assert [word for word in words if not re.search(rf"^class {word}\b", code, re.M)] == []


def test_every_compose_variable_is_documented_with_its_default() -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    used: dict[str, str] = {}
    for file in ROOT.glob("docker-compose*.yml"):
        code = re.sub(r"^\s*#.*", "", file.read_text(), flags=re.MULTILINE)
        used |= dict.fromkeys(
            re.findall(r"^    ([A-Z_]+):$", code, re.MULTILINE)
        )  # build arguments
        used |= dict(re.findall(r"\$\{([A-Z_]+)(?::[-?]([^}]*))?\}", code))
    assert {"TORCH_INDEX_URL", "PUBLISH_ADDRESS", "GRAFANA_PASSWORD_FILE"} <= set(used)
    assert set(used) - set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", text)) == set()
    for names, defaults in re.findall(r"^\| ([^|]*) \| ([^|]*) \|", text, re.MULTILINE):
        for name, default in zip(names.split(", "), defaults.split(", "), strict=False):
            if name.strip("`") in used and (default.startswith("`") or default.isdecimal()):
                assert used[name.strip("`")].removeprefix("./") == default.strip("`"), name
