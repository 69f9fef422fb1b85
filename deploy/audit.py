"""Checks the packages that constraints.txt pins for known vulnerabilities.

python deploy/audit.py [FILE]

Exit code 0: no known vulnerability. 1: prints a list of them. 3: prints why the database could not
be queried: pip-audit needs the internet. `make check` runs the offline part, pins.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NONE, SOME, NOT_ASKED = 0, 1, 3
ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit; return the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/audit.py")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "constraints.txt")
    file: Path = parser.parse_args(arguments).file
    done = subprocess.run(  # nosec B603 # pip-audit, on a file that the caller names
        [
            *(sys.executable, "-m", "pip_audit", "--requirement", str(file)),
            *("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    code, told = verdict(done.stdout, done.stderr)
    sys.stdout.write(f"{told}\n")
    return code


def verdict(answer: str, complaint: str) -> tuple[int, str]:
    """Interpret pip-audit's output: the exit code, and what to print.

    Args:
        answer: its stdout: JSON, or nothing if the query failed.
        complaint: its stderr.
    """
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (complaint.strip().splitlines() or ["it printed nothing"])[-1]
        return NOT_ASKED, f"not audited: pip-audit could not reach its database: {last[:300]}"
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    if len(skipped) == len(packages):  # for example a mirror of the index without its database
        return NOT_ASKED, "not audited: the database knows none of these packages"
    found = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in "
        f"{', '.join(flaw['fix_versions']) or 'no version yet'}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]
    if skipped:
        found.append(f"unknown to the database: {', '.join(skipped)}")
    lines = [f"{len(packages) - len(skipped)} packages audited", *found]
    if any(each.get("vulns") for each in packages):
        return SOME, "\n".join(lines)
    return NONE, "\n".join([*lines, "no known vulnerability"])


if __name__ == "__main__":
    sys.exit(main())
