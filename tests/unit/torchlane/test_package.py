"""What `import torchlane` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys


def test_api_for_handlers_imports_nothing_but_the_standard_library() -> None:
    text = """
import sys
import torchlane
assert not [each for each in sys.modules if each.startswith("torchlane.")]
known = torchlane.Handler, torchlane.Request, torchlane.Response
errors = torchlane.CallFailed("m", 500, "c", "e"), torchlane.InvalidInput("i")
from torchlane.handlers import process
foreign = {each.partition(".")[0] for each in sys.modules} - sys.stdlib_module_names
print(*sorted(each for each in foreign if not each.startswith("_")))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["torchlane"]
