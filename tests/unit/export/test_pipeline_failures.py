"""Failures of an export: reported in one line, early if possible, with nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from export.errors import ExportError, UsageError
from export.timing.tune import TuneOptions
from models.codec_specs import TensorCodecSpec
from models.definitions.definition import Definition, Progress
from tests.e2e.forking import Piped, run
from tests.unit.export.definitions import (
    Close,
    close_calls,
    definition,
)
from tests.unit.export.jobs import make


class TestFailed:
    """Nothing is left, whatever went wrong."""

    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, tmp_path: Path) -> object:
        yield
        assert list(tmp_path.iterdir()) == []

    def test_a_definition_that_raises(self, tmp_path: Path) -> None:
        def broken() -> list[object]:
            raise KeyError("golden")

        with pytest.raises(KeyError):
            make(tmp_path, definition(golden_inputs=broken))

    def test_contradictory_definition_is_reported_in_one_line(self, tmp_path: Path) -> None:
        wrong = definition(codec=TensorCodecSpec(labels=("only one",)))
        message = r"contradicts itself: manifest: .*1 labels"
        with pytest.raises(ExportError, match=message) as failed:
            make(tmp_path, wrong)
        assert "\n" not in str(failed.value)


class TestRefusedBeforeTraining:
    @pytest.fixture
    def unteachable(self) -> Callable[..., Definition]:
        def never(module: object, progress: Progress) -> None:
            raise AssertionError("it was trained")

        return lambda **changes: definition(train=never, **changes)

    def test_unknown_variants(self, tmp_path: Path, unteachable: Callable[..., Definition]) -> None:
        with pytest.raises(UsageError, match="--variants fast: there are: script"):
            make(tmp_path, unteachable(), "fast")

    def test_no_golden_examples(
        self, tmp_path: Path, unteachable: Callable[..., Definition]
    ) -> None:
        with pytest.raises(ExportError, match="'tiny' has no golden examples; a server replays"):
            make(tmp_path, unteachable(golden_inputs=list))


class TestPrecision:
    def test_precision_without_variants_fails_with_the_reasons(self, tmp_path: Path) -> None:
        expected = TuneOptions(max_batch=1, precision="bf16")
        model = definition(Close, train=None, held_out=close_calls)
        message = r"^--plan-precision bf16: no variant is left: bf16: accuracy 0\.0000 is 100\.00"
        with pytest.raises(ExportError, match=message):
            make(tmp_path, model, "script", "bf16", tuning=expected)
        assert list(tmp_path.iterdir()) == []


# Run in processes of their own: what they do to a process stays there.
FULL = """
import resource, sys
from pathlib import Path
from export.cli import main
from tests.e2e.forking import Piped, run
from tests.unit.export.definitions import CATALOG
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
arguments = ["tiny", "--out", sys.argv[2], "--variants", "script", "--max-batch-size", "2"]
sys.exit(main(arguments, CATALOG))
"""
SLOW = """
import runpy, sys, time
from pathlib import Path
from models import catalog
from tests.e2e.forking import Piped, run
from tests.unit.export.definitions import definition

def train(module, progress):
    progress(1, 100, "begun")
    Path(begun).touch()
    time.sleep(100)

catalog.CATALOG = {"tiny": definition(train=train)}
begun = sys.argv[1]
sys.argv[1:] = ["tiny", "--out", sys.argv[2], "--variants", "script"]
runpy.run_module("export", run_name="__main__")
"""


class TestProcess:
    @pytest.mark.soak
    def test_a_full_disk_leaves_nothing(self, tmp_path: Path) -> None:
        """A file size limit, which a writer sees as a full disk."""
        out = tmp_path / "out"
        done = run("-c", FULL, "10000", out)
        assert (done.returncode, out.exists()) == (1, False)
        assert "torchlane: cannot write report.html: File too large\n" in done.stderr
        assert "Traceback" not in done.stderr

    def test_interruption_leaves_nothing(self, tmp_path: Path) -> None:
        begun, out = tmp_path / "begun", tmp_path / "out"
        with Piped("-c", SLOW, begun, out, environment=os.environ) as process:
            while not begun.exists() and process.poll() is None:
                time.sleep(0.05)
            process.terminate()
            message = process.stderr.read().decode()
            assert (process.wait(200), out.exists()) == (128 + signal.SIGTERM, False)
        assert message.endswith("torchlane: interrupted; nothing was written\n")
        assert "Traceback" not in message
