"""The help of every command, and its answer to a wrong option: at once, and without extras."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What makes a start slow, and packages of extras that only a run needs.
SLOW = ("torch", "numpy", "matplotlib", "transformers", "lightning", "locust", "sklearn", "pyarrow")
LIGHT = (*SLOW, "pydantic", "rich")
ASK = """
import runpy, sys
module, slow, codes = sys.argv[1], set(sys.argv[2].split(",")), []
for command in sys.argv[3].split(","):
    for option in ("--help", "--no-such-option"):
        sys.argv = [module, *command.split(), option]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            codes.append(ended.code or 0)
        assert not slow & set(sys.modules), (command, slow & set(sys.modules))
assert codes == [0, 2] * (len(codes) // 2), codes
"""
OF_EXPORT = ("adopt", "train", "tune", "show", "profile", "keygen", "sign", "compare")
OF_LOAD_TESTS = ("find-capacity", "run", "bench", "networks", "overload")


@pytest.mark.parametrize(
    ("module", "slow", "programs"),
    [
        ("export", LIGHT, {"": "export"} | {each: each for each in OF_EXPORT}),
        ("loadtests", LIGHT, {"": "load"} | {each: f"load {each}" for each in OF_LOAD_TESTS}),
        ("app.bulk", LIGHT, {"": "score"}),
        ("app.access", LIGHT, {"": "keys"}),
        ("app", SLOW, {"": "serve"}),
        ("torchlane.completion", LIGHT, {"": "completion"}),
    ],
)
def test_help_and_wrong_options_import_nothing_slow(
    module: str, slow: tuple[str, ...], programs: dict[str, str]
) -> None:
    arguments = [module, ",".join(slow), ",".join(programs)]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    usages = [line.partition(" [")[0] for line in done.stdout.splitlines() if line[:6] == "usage:"]
    assert usages == [f"usage: torchlane {name}" for name in programs.values()]
    told = done.stderr.splitlines()
    assert len(told) == len(programs)
    assert all(line.startswith("torchlane: ") for line in told)
