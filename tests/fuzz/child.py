"""The process that fuzzes one target: atheris instruments what it imports, and ends it its own way.

python -m tests.fuzz.child TARGET FOLDER [libFuzzer's options]    fuzzes, from the cases in FOLDER
python -m tests.fuzz.child TARGET FILE                            runs one case again
"""

from __future__ import annotations

import importlib
import resource
import sys
import tempfile
import warnings
from pathlib import Path

import atheris
import numpy  # noqa: F401 - for its readers alone all of it would be instrumented, in 3 s

from tests.fuzz.names import MODULES, PLANTED

INSTRUMENTED = [
    "app",
    "models",
    "torchlane",
    "PIL",
    "numpy.lib",
    "python_multipart",
    "tests.fuzz",
]
NPY = ("numpy.lib._format_impl", "numpy.lib.format")  # what reads .npy, instrumented nonetheless
OPTIONS = ("-timeout=10", "-print_final_stats=1", "-use_value_profile=1")
MOST_MIB = 1024


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name, where, *options = sys.argv[1:]
    for module in NPY:
        del sys.modules[module]
    with atheris.instrument_imports(include=INSTRUMENTED):
        importlib.import_module(NPY[-1])
        target = importlib.import_module((MODULES | PLANTED)[name]).TARGET
    scratch = Path(tempfile.mkdtemp(prefix="torchlane-fuzz-"))
    (scratch / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    if Path(where).is_dir():
        for number, seed in enumerate(target.seeds()):
            (Path(where) / f"seed-{number:03}").write_bytes(seed)
    # Its peak is what libFuzzer looks at, and a process begins with the one of who started it.
    most_mib = max(MOST_MIB, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + 1)
    limits = (f"-rss_limit_mb={most_mib}", f"-max_len={target.max_bytes}")
    words = f"-dict={scratch / 'words'}"
    for seed in target.seeds():  # what is made at the first use is no growth, and no case's fault
        target.case(seed)
    warnings.simplefilter("error")  # the log of a server is no place for strangers to write to
    atheris.Setup([sys.argv[0], *OPTIONS, *limits, words, *options, where], target.case)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
