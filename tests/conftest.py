"""Fixtures that several kinds of tests share.

Torch, the server and the export are imported by what needs them: together they take seconds, and
the process that only hands out tests needs none of them.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import gc
import hashlib
import multiprocessing
import signal
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from filelock import FileLock

import app

if TYPE_CHECKING:
    import torch

    from tests.s3 import Bucket, Proxy


# Failed assertions of helpers are explained, too; what is already imported cannot be changed.
HELPERS = {f"tests.{each.stem}" for each in Path(__file__).parent.iterdir()} - set(sys.modules)
pytest.register_assert_rewrite(*HELPERS)
gc.disable()  # modules are no garbage, and it would look at them again and again


def pytest_report_header() -> str:
    spec = find_spec("app.engine.engine")
    compiled = spec is not None and not str(spec.origin).endswith(".py")
    return f"app: {'compiled, ' if compiled else ''}{Path(app.__file__).parent}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Say how a test process ended that reported nothing: pytest-xdist only says that it did."""
    if error:
        status = node.gateway._io.popen.wait(timeout=10)
        print(f"\n{node.gateway.id} ended with status {status} ({error})")  # noqa: T201


Once = Callable[[str, Callable[[Path], None]], Path]

HERE = Path(__file__).parent
# A file runs in one worker. The longest ones begin first; else the other workers would wait for
# them at the end.
LONGEST = (
    "chaos/test_chaos.py",
    "e2e/test_curl.py",  # with its repository, for which others wait
    "clients/test_inference_clients.py",
    "deploy/test_wheel.py",
    "integration/test_mlflow.py",
    "integration/test_hub.py",
    "e2e/test_unread_output.py",
    "e2e/test_hangs.py",
    "docs/test_tutorial.py",
    "unit/app/handlers/test_answers.py",
    "unit/export/training/test_train.py",
    "unit/export/training/test_lightning_options.py",
    "integration/test_attacks.py",
)


def pytest_sessionstart() -> None:
    """Measure as on a quiet machine: no test compares speeds, and the other tests keep it busy.

    A measurement that waits for a quiet moment takes twelve times as long, and in vain.
    """
    from models import timing

    timing.TRIES = timing.PATIENCE = 1


@pytest.fixture(autouse=True)
def _sigint() -> None:
    """Give SIGINT its usual handler: if it is ignored here, processes of tests ignore it too.

    A test of a program may have set another one, and workers of pytest-xdist may ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """From now on the collector looks at what tests make, not at a million objects of modules."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.path.relative_to(HERE).as_posix()))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu or _has_gpu():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and there is none")
    for item in on_gpu:
        item.add_marker(skip)


def _turn(file: str) -> tuple[int, int]:
    """When a file runs. Some compute and others wait: mixed, they leave no core idle."""
    place = LONGEST.index(file) if file in LONGEST else len(LONGEST)
    return place, zlib.crc32(file.encode())


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A folder that is filled once for all workers: the others wait for the first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base

    def filled(name: str, fill: Callable[[Path], None]) -> Path:
        with FileLock(shared / f"{name}.lock", timeout=220):  # less than a test may take
            if not (shared / name).exists():
                filling = tmp_path_factory.mktemp(f"{name}-")
                fill(filling)
                filling.rename(shared / name)
        return shared / name

    return filled


@pytest.fixture(scope="session", autouse=True)
def _programs_are_compiled_once(once: Once) -> Iterator[None]:
    """The compiler takes seconds for each program: here no two workers compile the same one."""
    if "export.variants.compiled" not in sys.modules:  # then none of the collected tests does
        yield
        return
    import torch

    from export.artifact import write_file

    compiled = sys.modules["export.variants.compiled"]
    compile_package = compiled._compile

    def compiled_once(program: torch.export.ExportedProgram, march: str | None, file: Path) -> None:
        known = hashlib.sha256(f"{march}{program}".encode())
        for weights in program.state_dict.values():
            known.update(weights.detach().reshape(-1).view(torch.uint8).numpy())

        def fill(folder: Path) -> None:
            from torch._inductor import config

            # Of the calling code alone: kernels are compiled as ever, and it is a fifth cheaper.
            with config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
                compile_package(program, march, folder / "package")

        write_file(file, (once(known.hexdigest(), fill) / "package").read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_compile", compiled_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _probing_processes_import_torch_once() -> Iterator[None]:
    """Each probe has a process of its own, but forked from one that has imported all of it."""
    if "export.probing.probe_process" not in sys.modules or sys.platform != "linux":
        yield
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["export.probing.probe_process"])
    with pytest.MonkeyPatch.context() as patch:
        forking = SimpleNamespace(get_context=lambda _: context)
        patch.setattr("export.probing.probe_process.multiprocessing", forking)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_scans_the_heap_of_the_tests() -> Iterator[None]:
    """A scan takes most of a second: for each version that is loaded, and several in an export."""
    scans = (
        *("app.main.calm_gc", "app.main.give_memory_back"),
        *("export.pipeline.collect", "export.proving.prove.collect"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.system.heap.collect", lambda: None)  # for modules imported later
        for name in scans:
            if name.rpartition(".")[0] in sys.modules:  # else no collected test calls it here
                patch.setattr(name, lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _types_of_routes_are_read_once() -> Iterator[None]:
    """Half the time that it takes to make an application, of which there are a thousand."""
    if "app.main" not in sys.modules:
        yield
        return
    from fastapi._compat import v2
    from pydantic import TypeAdapter

    known = dict[tuple[object, str], TypeAdapter[object]]()

    def adapter(annotated: object, config: object) -> TypeAdapter[object]:
        origin, *metadata = get_args(annotated)
        key = (origin, f"{metadata} {config}")
        if key not in known:
            known[key] = TypeAdapter(annotated, config=config)  # type: ignore[arg-type]
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v2, "TypeAdapter", adapter)
        yield


@pytest.fixture(scope="session")
def trained_digits(once: Once) -> Path:
    """The state_dict of digits, trained as the export does for 24 epochs, once for all tests."""
    import torch

    from models.definitions import digits
    from models.runtimes.forms import intra_op_threads

    def train(folder: Path) -> None:
        eager = digits.Digits().eval()
        with intra_op_threads(1):  # half the processor time of two
            short = dataclasses.replace(digits.TRAINING, epochs=14)
            short.fit(eager, lambda done, total, note: None)
        torch.save(eager.state_dict(), folder / "digits.pt")

    return once("trained", train) / "digits.pt"


@pytest.fixture(scope="session")
def repository(once: Once, trained_digits: Path) -> Path:
    """A repository with digits/1 and pairwise/1, exported once for all tests: do not change.

    Compiled forms and large batches would take most of a minute: tests of these make their own.
    Where there is a GPU, digits has all forms.
    """
    from export.cli import main as export_main
    from models.catalog import CATALOG

    def export(out: Path) -> None:
        quick = ["--max-batch-size", "8", "--variants", "script,bf16,int8", "--threads", "1"]
        forms = [] if _has_gpu() else quick
        weights = ["--weights", str(trained_digits)]
        assert export_main(["digits", *weights, *forms, "--out", str(out)], CATALOG) == 0
        assert export_main(["pairwise", *quick, "--out", str(out)], CATALOG) == 0

    return once("artifacts", export)


@pytest.fixture(scope="session")
def s3_port(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real S3; tests make buckets of their own in it."""
    from tests.s3 import s3_server

    with s3_server(once, tmp_path_factory.mktemp("s3") / "log") as port:
        yield port


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of that S3, which the tools of S3 use."""
    from tests.s3 import environment_of, proxied

    with proxied(s3_port) as proxy:
        for name, value in environment_of(proxy).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(s3_port: int) -> Bucket:
    """An empty bucket."""
    from tests.s3 import Bucket

    return Bucket(s3_port, f"models-{uuid.uuid4().hex}")
