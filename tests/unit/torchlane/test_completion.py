"""`torchlane completion`: what real shells complete with its script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchlane.command import PROGRAMS
from torchlane.completion import script

# Does what bash does when TAB is pressed after the words in its arguments.
PRESS_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p torchlane | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
"$function"
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "torchlane"
    code = (
        "import sys; from torchlane.completion import main; main(['bash']); "
        "assert 'torch' not in sys.modules"
    )
    with file.open("w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True)
    return file


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ((), tuple(PROGRAMS)),
        (("do",), ("doctor",)),
        (("serve", "--page", ""), ("auto", "on", "off")),
        (("serve", "--worker"), ("--workers",)),  # --worker is the parent's
        (("export", "pair"), ("pairwise",)),
        (("adopt", "--resize"), ("--resize-shorter",)),
        (("load", "run", "--arrivals", "u"), ("uniform",)),
        (("keys", "--scope", ""), ("predict", "admin", "metrics")),
    ],
)
def test_bash_completes(bash: Path, words: tuple[str, ...], completed: tuple[str, ...]) -> None:
    typed = words or ("",)
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", bash, "torchlane", *typed],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (list(completed), "")


@pytest.mark.parametrize(
    "words", [("serve", "--model-dir"), ("adopt",), ("load", "run", "--out")], ids=" ".join
)
def test_bash_completes_paths(bash: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "models").mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", bash, "torchlane", *words, f"{tmp_path}/mo"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path}/models\n"


def test_zsh_reads_the_script(tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("there is no zsh on PATH")
    (tmp_path / "_torchlane").write_text(script("zsh"))
    ask = "fpath=($1 $fpath); autoload -U compinit; compinit -u -D; echo $_comps[torchlane]"
    done = subprocess.run(
        [zsh, "-f", "-c", f"{ask}; zsh -n $1/_torchlane", "zsh", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("_torchlane\n", "", 0)
