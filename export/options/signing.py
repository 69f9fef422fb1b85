"""The options of `torchlane keygen` and `torchlane sign`."""

from __future__ import annotations

import argparse

from export.options.artifacts import add_folder
from models.system.local_paths import local_path

KEYGEN = "Create a pair of Ed25519 keys: a private one for signing, a public one for servers."
SIGN = "Sign an artifact, as a new version because artifacts never change."
# Not TORCHLANE_...: a server in the same environment would reject it as an unknown setting.
PASSPHRASE = "EXPORT_KEY_PASSPHRASE"  # nosec B105 # the variable's name


def add_keygen(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane keygen`."""
    parser.add_argument(
        "private",
        type=local_path,
        metavar="PRIVATE.pem",
        help="the file for the private key; the public one is written to PRIVATE.pub.pem",
    )
    parser.add_argument(
        "--passphrase",
        action="store_true",
        help=f"encrypt the private key; the passphrase comes from {PASSPHRASE}, or from a prompt",
    )


def add_sign(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane sign`."""
    add_folder(parser)
    parser.add_argument(
        "--key",
        type=local_path,
        required=True,
        metavar="PRIVATE.pem",
        help="an Ed25519 key from keygen; its passphrase, if it has one, comes from "
        f"{PASSPHRASE}, or from a prompt",
    )
    parser.add_argument(
        "--trusted-keys",
        type=local_path,
        metavar="PATH",
        help="public keys, a PEM file or a folder of them: sign only artifacts that one of them or "
        "--key signed before (default: also unsigned artifacts, but not those of other signers)",
    )
