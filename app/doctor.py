"""`torchlane doctor`: prints what a bug report needs, and what keeps a server from starting.

It changes nothing, loads no model and calls no other machine. Values of secret settings are left
out.
"""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence

from app.api.ports import bound_socket
from app.doctor_options import parser
from app.errors import TorchlaneError
from app.extras import check_extras
from app.model_source import repository_of
from app.registry.repository import Repository
from app.settings import PREFIX, Settings, SettingsError, load_settings
from app.sources.repository import MirroredRepository
from app.types import ModelId
from models.processor import cpu_name
from models.stores.urls import Place
from models.system.distributions import installed_version, own_version
from models.system.extras import MissingExtra
from models.system.resources import memory_left_bytes, usable_cores

# Distributions whose versions explain most reports; extras install those after torch.
DISTRIBUTIONS = (
    *("torch", "numpy", "fastapi", "uvicorn", "pydantic"),
    *("onnxruntime", "openvino", "torchvision", "grpcio", "opentelemetry-sdk", "redis", "obstore"),
    *("tokenizers", "transformers", "soundfile", "pyarrow", "lightning", "locust"),
)
GIB = 1024**3
ANSWER_S = 2.0  # the most that a server on the port may take to answer
FAILED_EXIT_CODE = 1
# A line, and whether it says that a server would not start or answer.
Line = tuple[str, bool]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 1 if it names a problem."""
    chosen = {name: each for name, each in vars(parser().parse_args(arguments)).items() if each}
    problems = 0
    for line, is_problem in _report(chosen):
        sys.stdout.write(f"{'! ' if is_problem else '  '}{line}\n")
        problems += is_problem
    if problems:
        sys.stdout.write(f"\n{problems} problem{'s' if problems > 1 else ''}, marked with !\n")
    return FAILED_EXIT_CODE if problems else 0


def _report(chosen: dict[str, Place]) -> Iterator[Line]:
    yield from _versions()
    yield from _machine()
    try:
        settings = load_settings(os.environ, **chosen)
    except SettingsError as error:
        yield from ((f"settings: {line}", True) for line in str(error).splitlines())
        return
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value != field.default:
            shown = repr(str(value)) if field.repr else "(secret)"
            yield f"setting: {PREFIX}{name.upper()}={shown}", False
    yield _port(settings)
    yield from _repository(settings)


def _versions() -> Iterator[Line]:
    # Not at the top: torch takes a second or two.
    from app.main import is_compiled  # noqa: PLC0415
    from models.runtimes.torchscript import reads_without_gil  # noqa: PLC0415

    code = "machine code" if is_compiled() else "Python alone"
    if is_compiled() and not reads_without_gil():
        code += ", but TorchScript files are read with the GIL: compile with the installed torch"
    yield f"torchlane {own_version()} ({code})", False
    yield f"Python {platform.python_version()} at {sys.executable}", False
    versions = ((name, installed_version(name)) for name in DISTRIBUTIONS)
    packages = ", ".join(f"{name} {version}" for name, version in versions if version)
    yield f"packages: {packages}", False


def _machine() -> Iterator[Line]:
    import torch  # noqa: PLC0415 # see `_versions`

    yield f"system: {platform.platform()}", False
    yield f"processor: {cpu_name()}, {usable_cores()} usable cores", False
    if (left := memory_left_bytes()) is not None:
        yield f"memory: {left / GIB:.1f} GiB free", False
    gpus = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield f"GPUs: {', '.join(gpus) or 'none'} ({built})", False
    compilers = [shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    compiler = next((each for each in compilers if each), "none: compiled variants need one")
    yield f"C++ compiler: {compiler}", False


def _port(settings: Settings) -> Line:
    """Whether the port is free, or what answers there."""
    address = f"{settings.host}:{settings.port}"
    try:
        bound_socket(settings.host, settings.port).close()
    except OSError as error:
        return _answerer(settings, address, error)
    return f"port: {address} is free", False


def _answerer(settings: Settings, address: str, error: OSError) -> Line:
    connection = http.client.HTTPConnection(settings.host, settings.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        text = answer.read(1000).decode("utf-8", "backslashreplace")
    except (OSError, http.client.HTTPException):
        return f"port: {address} cannot be used ({error.strerror}), no HTTP server is there", True
    finally:
        connection.close()
    return f"port: at {address} a server answers {answer.status} {text}", answer.status != 200


def _repository(settings: Settings) -> Iterator[Line]:
    """The artifacts, each opened as a server opens it, except that signatures are not checked.

    Of a store, those that are on this machine: it is not asked.
    """
    try:
        check_extras(settings)
        repository = repository_of(settings)
    except (MissingExtra, SettingsError) as error:
        yield str(error), True
        return
    root = repository.root
    try:
        contents = repository.scan()
    except OSError as error:
        yield f"repository: {root.absolute()} cannot be read: {error.strerror}", True
        return
    if isinstance(repository, MirroredRepository):
        yield f"store: {settings.model_dir}, {repository.seen()}", False
    yield f"repository: {root.absolute()}", False
    for name, why in contents.unreadable.items():
        yield f"{name}: {why}", True
    for name, versions in contents.versions.items():
        yield from (_artifact(repository, ModelId(name, each)) for each in versions)
    if not contents.versions:
        yield repository.why_empty(), True


def _artifact(repository: Repository, model: ModelId) -> Line:
    try:
        artifact = repository.open(model)
    except TorchlaneError as error:
        return str(error), True
    variants = ", ".join(artifact.manifest.variants)
    size = sum(each.stat().st_size for each in artifact.folder.iterdir()) / 1024**2
    return f"{model}: intact, {size:.1f} MiB, variants {variants}", False


if __name__ == "__main__":
    sys.exit(main())
