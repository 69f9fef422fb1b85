"""URLs of cache servers; what is wrong with one is said without its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.shared_cache.address import Address
from app.shared_cache.link import Refused

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache", "cache:6379"),
        (f"redis://:{SECRET}@cache:7000/3", "cache:7000"),
        (f"rediss://me:{SECRET}@[::1]:7000?ssl_cert_reqs=none", "::1:7000"),
        (f"unix://me:{SECRET}@/run/redis.sock?db=1", "/run/redis.sock"),
    ],
)
def test_shown_address_has_no_login(url: str, shown: str) -> None:
    address = Address(url)
    assert address.shown == shown
    assert SECRET not in repr(address)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("?db=1&unheard_of=1", "redis-py does not know the option 'unheard_of'"),
        (
            "?socket_timeout=soon",
            "the option 'socket_timeout' cannot be used: its value is not accepted",
        ),
        ("?ssl_check_hostname", "the option 'ssl_check_hostname' has no value"),
        ("?ssl_ca_certs=/there/is/none", "the option 'ssl_ca_certs' cannot be used: No such file"),
        ("?ssl_cert_reqs=perhaps", "the option 'ssl_cert_reqs' cannot be used: "),
        (f"?ssl_password={SECRET}&protocol=9", "the option 'protocol' cannot be used: "),
    ],
)
def test_wrong_options_are_refused(options: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        Address(f"rediss://:{SECRET}@cache{options}")
    assert SECRET not in str(caught.value)


def test_server_error_shows_only_its_code() -> None:
    echoed = Refused(f"ERR unknown command 'AUTH', with args beginning with: '{SECRET}'")
    assert str(echoed) == "the server answers ERR"
    assert str(Refused(SECRET)) == "the server answers an error"
