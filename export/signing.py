"""The commands for signatures: `keygen`, `sign`, and what `show` says about them."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from rich.console import Console

from export.errors import UsageError
from export.keys import is_read_by_others, make_keys, read_signer
from export.options.signing import PASSPHRASE
from export.progress import say
from export.renewal import sign_anew
from models.integrity import MAX_SMALL_BYTES, Untrusted
from models.manifest import SIGNATURE_FILE
from models.signatures import KeyFileError, TrustedKeys, claimed_key
from models.system.contained import FileRejected, read_inside


def keygen(args: argparse.Namespace, console: Console) -> None:
    """Run `keygen`.

    Raises:
        UsageError: if no passphrase can be read, and see `make_keys`.
    """
    passphrase = _new_passphrase() if args.passphrase else None
    public, fingerprint = make_keys(args.private, passphrase)
    say(console, f"{args.private} signs: keep it secret, and away from servers")
    say(console, f"{public} is for servers: set TORCHLANE_TRUSTED_KEYS to it, or to its folder")
    say(console, f"fingerprint {fingerprint}")


def sign(args: argparse.Namespace, console: Console) -> None:
    """Run `sign`.

    Raises:
        UsageError: if the artifact is not intact, there is no key, or a signature is not trusted.
        ExportError: if the new version cannot be written.
    """
    signer = read_signer(args.key, lambda: _passphrase(args.key))
    if is_read_by_others(args.key):
        say(console, f"warning: others can read {args.key}; chmod 600 keeps them out")
    folder = sign_anew(args.folder, signer, trusted_keys(args.trusted_keys))
    say(console, f"{folder} is {args.folder}, signed by the key {signer.fingerprint}")


def trusted_keys(path: Path | None) -> TrustedKeys | None:
    """Read the keys of the option --trusted-keys.

    Raises:
        UsageError: if it names no keys.
    """
    try:
        return None if path is None else TrustedKeys.read(path)
    except KeyFileError as error:
        raise UsageError(f"--trusted-keys {path}: {error}") from error


def describe_signature(folder: Path, *, is_checked: bool) -> str:
    """Return the report's text about an artifact's signature."""
    try:
        fingerprint = claimed_key(read_inside(folder, SIGNATURE_FILE, MAX_SMALL_BYTES))
    except FileNotFoundError:
        return "none"
    except OSError as error:
        return f"{SIGNATURE_FILE} cannot be read: {error.strerror}"
    except (FileRejected, Untrusted) as error:
        return str(error)
    return f"by {fingerprint}, {'a trusted key' if is_checked else 'not checked (--trusted-keys)'}"


def _passphrase(private: Path) -> bytes:
    """Read the passphrase of an existing key."""
    return _encode(os.environ.get(PASSPHRASE) or _prompt(f"Passphrase of {private}: "))


def _new_passphrase() -> bytes:
    passphrase = os.environ.get(PASSPHRASE)
    if not passphrase:
        passphrase = _prompt("Passphrase of the new key: ")
        if passphrase != _prompt("Repeat the passphrase: "):
            raise UsageError("the two passphrases differ; no key was created")
    return _encode(passphrase)


def _encode(passphrase: str) -> bytes:
    if not passphrase:
        raise UsageError("the passphrase is empty; omit --passphrase for a key without one")
    return passphrase.encode()


def _prompt(question: str) -> str:
    if not sys.stdin.isatty():  # getpass would read from another source, and echo
        raise UsageError(f"a passphrase is required: set {PASSPHRASE}, or run this in a terminal")
    return getpass.getpass(question)
