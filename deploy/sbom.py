"""Prints a bill of materials of an image: its Python and Debian packages, as CycloneDX 1.6 in JSON.

python deploy/sbom.py IMAGE
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

PYTHON = (
    "from importlib.metadata import distributions\n"
    "for each in distributions(): print(each.name, each.version)"
)
# Each lists a package and its version in a line.
COMMANDS = {
    "pypi": ("python", "-c", PYTHON),
    "deb": ("dpkg-query", "--show", "--showformat", "${Package} ${Version}\\n"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bill of an image; return the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/sbom.py", description=__doc__)
    parser.add_argument("image", help="name or digest of an image that the engine has")
    image: str = parser.parse_args(arguments).image
    bom = Bom()
    bom.metadata.component = Component(name=image, type=ComponentType.CONTAINER)
    bom.components.update(components(image))
    bom.register_dependency(bom.metadata.component, bom.components)
    sys.stdout.write(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    return 0


def components(image: str) -> Iterator[Component]:
    """Yield the packages in an image.

    Raises:
        subprocess.CalledProcessError: if the engine cannot run the image.
    """
    for kind, command in COMMANDS.items():
        run = ["docker", "run", "--rm", "--network", "none", "--entrypoint", command[0], image]
        listed = subprocess.run(  # nosec B603 # fixed commands, in the image that the caller names
            [*run, *command[1:]], stdout=subprocess.PIPE, text=True, check=True
        )
        namespace = "debian" if kind == "deb" else None
        for line in sorted(set(listed.stdout.splitlines())):
            name, _, version = line.partition(" ")
            url = PackageURL(kind, namespace, name, version)
            yield Component(name=name, version=version, purl=url, bom_ref=str(url))


if __name__ == "__main__":
    sys.exit(main())
