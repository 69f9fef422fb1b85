"""API key lines, and wrong lines, which are never repeated in messages."""

from __future__ import annotations

import hashlib

import pytest

from app.access.__main__ import main
from app.access.entries import MAX_KEYS, EntryError, make_key, parse_entries, parse_limits

HASH = "sha256:" + hashlib.sha256(b"secret").hexdigest()
OTHER = "sha256:" + hashlib.sha256(b"other").hexdigest()


def test_lines_are_read() -> None:
    lines = [
        "# who may call",
        "",
        f"  mobile predict {HASH}   # since May",
        f"ops\tpredict,admin\t{OTHER}\t100 per 5 second, 1000/hour",
    ]
    mobile, ops = parse_entries(lines)
    assert (mobile.name, mobile.scopes, mobile.limits) == ("mobile", frozenset({"predict"}), None)
    assert mobile.digest == hashlib.sha256(b"secret").digest()
    assert (ops.name, ops.scopes) == ("ops", frozenset({"predict", "admin"}))
    assert ops.limits is not None
    assert [str(each) for each in ops.limits] == ["100 per 5 second", "1000 per 1 hour"]


def test_keys_share_a_name_during_a_rotation() -> None:
    first, second = parse_entries([f"a predict {HASH}", f"a predict {OTHER}"])
    assert first.name == second.name


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tl_secret", "the name must be followed by scopes"),
        (f"{HASH} predict name", "a name has at most 64 letters"),
        (f"name {HASH}", "the name must be followed by scopes"),
        (f"name predict,root {HASH}", "the name must be followed by scopes"),
        (f"name , {HASH}", "the name must be followed by scopes"),
        ("name predict tl_secret", "64 hex digits; `torchlane keys NAME` creates"),
        (f"name predict {HASH[:-1]}", "64 hex digits"),
        (f"name predict {HASH.upper()}", "64 hex digits"),
        (f"name predict {HASH} tl_secret", "a rate limit is a number of items per time"),
        (f"name predict {HASH} 0/second", "a rate limit is a number of items per time"),
        (f"a predict {HASH}", "duplicate key"),
        (f"{'x' * 65} predict {HASH}", "a name has at most 64 letters"),
    ],
)
def test_wrong_line_is_named_by_number_only(line: str, why: str) -> None:
    with pytest.raises(EntryError) as rejected:
        parse_entries(["# first", f"a predict {HASH}", line])
    message = str(rejected.value)
    assert message.startswith("line 3: ")
    assert why in message
    for part in ("tl_secret", HASH, HASH.upper(), HASH[:-1]):
        assert part not in message


def test_number_of_keys_is_limited() -> None:
    lines = [f"a predict sha256:{n:064x}" for n in range(MAX_KEYS)]
    assert len(parse_entries(lines)) == MAX_KEYS
    with pytest.raises(EntryError, match=f"at most {MAX_KEYS}"):
        parse_entries([*lines, f"a predict {HASH}"])


@pytest.mark.parametrize("text", ["", "fast", "1/fortnight", "-1/second", "1/second;", "0/second"])
def test_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(EntryError, match="100/second"):
        parse_limits(text)


class TestMaking:
    def test_new_keys_differ_and_match_their_lines(self) -> None:
        secret, line = make_key("mobile", ["predict", "admin"], "100/second")
        assert secret != make_key("mobile", ["predict"])[0]
        assert secret.startswith("tl_")
        assert len(secret) > 40
        (key,) = parse_entries([line])
        assert key.digest == hashlib.sha256(secret.encode()).digest()
        assert key.scopes == {"predict", "admin"}
        assert secret not in line

    def test_command_prints_only_the_line_to_stdout(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["ops", "--scope", "predict", "--scope", "admin", "--limit", "10/second"]
        assert main(arguments) == 0
        printed = capfd.readouterr()
        (key,) = parse_entries(printed.out.splitlines())
        assert (key.name, key.scopes) == ("ops", frozenset({"predict", "admin"}))
        secret = printed.err.splitlines()[-1]
        assert key.digest == hashlib.sha256(secret.encode()).digest()

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["a b"], "torchlane: a name has at most 64 letters"),
            (["a", "--limit", "many"], "torchlane: a rate limit is a number"),
        ],
    )
    def test_invalid_arguments_create_no_key(
        self, capfd: pytest.CaptureFixture[str], arguments: list[str], why: str
    ) -> None:
        assert main(arguments) == 2
        printed = capfd.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(why)


def test_repr_does_not_show_the_hash() -> None:
    (key,) = parse_entries([f"a predict {HASH}"])
    assert key.digest.hex() not in repr(key)
    assert str(key.digest) not in repr(key)
