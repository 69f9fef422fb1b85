"""Requests that a rule of RFC 9110 or 9112 is about, and what they must be answered.

Each is sent on both paths through the server: where it says `/predict`, the test puts the path.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.integration.wire import READY, ask_for, chunked, request

BODY = b'{"input": [7, 2]}'
SMUGGLED = ask_for(9, path="/models/double/predict", x_request_id="smuggled")
HOST = b"Host: loopback\r\n"
JSON = b"Content-Type: application/json\r\n"
START = b"POST /predict HTTP/1.1\r\n" + HOST + JSON
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
OF_CHUNKS = START + CHUNKED + b"\r\n"
WEBSOCKET = b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"


@dataclass(frozen=True)
class Rule:
    """A request and its outcome.

    Attributes:
        section: of the RFC: `9112-3.2`.
        sent: the pieces that are sent one after another.
        statuses: of the answers.
        stays: whether the connection serves the next request.
    """

    section: str
    sent: tuple[bytes, ...]
    statuses: tuple[int, ...] = (200,)
    stays: bool = True


def rejected(section: str, *sent: bytes, status: int = 400) -> Rule:
    """The connection is closed, and what comes behind the request is not read as another one."""
    return Rule(section, (*sent, SMUGGLED), (status,), stays=False)


def _with_head(line: bytes) -> bytes:
    return START + LENGTH + line + b"\r\n" + BODY


def _to(target: bytes, host: bytes = HOST, method: bytes = b"GET") -> bytes:
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, target, host)


def _chunk(size: bytes) -> bytes:
    return OF_CHUNKS + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"


def _ended_by(trailers: bytes) -> bytes:
    return OF_CHUNKS + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, trailers)


def _upgrades() -> dict[str, Rule]:
    heads = {
        "unknown": b"Connection: Upgrade\r\nUpgrade: anything\r\n",
        "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
        "websocket": b"Connection: keep-alive, upgrade\r\n" + WEBSOCKET,
        "two": b"Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: TLS/1.0\r\n",
    }
    bodies = {"length": LENGTH + b"\r\n" + BODY, "chunks": CHUNKED + b"\r\n" + chunked(BODY, 5)}
    rules: dict[str, Rule] = {}
    for name, head in heads.items():
        for framing, body in bodies.items():
            whole = START + head + body
            at = whole.index(b"\r\n\r\n") + 4
            rules |= {
                f"upgrade to {name}, {framing}": Rule("9110-7.8", (whole,)),
                f"upgrade to {name}, {framing} later": Rule("9110-7.8", (whole[:at], whole[at:])),
                f"upgrade to {name}, {framing} in pieces": Rule(
                    "9110-7.8", (whole[: at - 9], whole[at - 9 : at + 3], whole[at + 3 :])
                ),
            }
        smuggling = START + b"Content-Length: %d\r\n" % len(SMUGGLED) + head + b"\r\n"
        rules |= {
            f"upgrade to {name}, a request as body": Rule(
                "9110-7.8", (smuggling, SMUGGLED), (422,)
            ),
            f"upgrade to {name}, a request as body at once": Rule(
                "9110-7.8", (smuggling + SMUGGLED,), (422,)
            ),
            f"upgrade to {name}, no body": Rule(
                "9110-7.8", (b"GET /health/live HTTP/1.1\r\n" + HOST + head + b"\r\n" + READY,),
                (200, 200),
            ),
            f"upgrade to {name}, unknown path": Rule(
                "9110-7.8", (b"PUT /no HTTP/1.1\r\n" + HOST + head + LENGTH + b"\r\n", BODY), (404,)
            ),
            f"upgrade to {name}, HTTP/1.0": Rule(
                "9110-7.8",
                ((START + head + LENGTH + b"\r\n" + BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),),
                stays=False,
            ),
        }  # fmt: skip
    one = START + heads["unknown"] + bodies["length"]
    rules["upgrades, pipelined"] = Rule("9110-7.8", (one * 20,), (200,) * 20)
    return rules


RULES: dict[str, Rule] = {
    **_upgrades(),
    # 9112-2: messages
    "an empty line before": Rule("9112-2.2", (b"\r\n" + ask_for(7),)),
    "space before the first header": rejected("9112-2.2", b"GET / HTTP/1.1\r\n " + HOST + b"\r\n"),
    "bare LF": rejected("9112-2.2", ask_for(7).replace(b"\r\n", b"\n")),
    "a bare CR": rejected("9112-2.2", _with_head(b"A: b\rc: d\r\n")),
    "HTTP/2.0": rejected("9112-2.3", ask_for(7, version="2.0"), status=505),
    "HTTP/1.2": rejected("9112-2.3", ask_for(7, version="1.2"), status=505),
    "HTTP/3.0": rejected("9112-2.3", ask_for(7, version="3.0"), status=505),
    "HTTP/0.9": rejected("9112-2.3", b"GET /health/live\r\n\r\n", status=505),
    "RTSP/1.0": rejected("9112-3", ask_for(7).replace(b"HTTP/1.1", b"RTSP/1.0", 1)),
    "RTSP/1.1": rejected("9112-3", ask_for(7).replace(b"HTTP/1.1", b"RTSP/1.1", 1)),
    "two spaces and RTSP": rejected("9112-3", b"GET /health/live  RTSP/1.0\r\n" + HOST + b"\r\n"),
    "ICE/1.0": rejected("9112-3", b"SOURCE /health/live ICE/1.0\r\n" + HOST + b"\r\n"),
    "HTTP/2 preface": rejected("9112-2.3", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", status=505),
    # 9112-3: request line and target
    "a tab in the line": rejected("9112-3", b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no target": rejected("9112-3", b"GET HTTP/1.1\r\n" + HOST + b"\r\n"),
    "space behind the version": rejected("9112-3", b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n"),
    "unknown method": rejected("9110-9.1", b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no Host": rejected("9112-3.2", _to(b"/health/live", b"")),
    "two Hosts": rejected("9112-3.2", _to(b"/health/live", HOST + b"Host: other\r\n")),
    "one Host twice": rejected("9112-3.2", _to(b"/health/live", HOST * 2)),
    "two Hosts for a prediction": rejected("9112-3.2", _with_head(b"host: other\r\n")),
    "two Hosts, HTTP/1.0": rejected("9112-3.2", _with_head(HOST).replace(b"1.1", b"1.0")),
    **{
        f"Host {host.decode()}": rejected("9112-3.2", _to(b"/", b"Host: %s\r\n" % host))
        for host in (b"a b", b"a@b", b"a/b", b"a:80:80", b"a:port", b"[::1", b"a?b", b":80")
    },
    **{
        f"Host {host.decode()!r}": Rule("9112-3.2", (_to(b"/health/live", b"Host: %s\r\n" % host),))
        for host in (
            b"",
            b"a.b-c_d",
            b"1.2.3.4:80",
            b"[::1]:80",
            b"[::1]",
            b"A.B:0",
            b"xn--a",
            b"a:",
        )
    },
    "a whole URL": Rule(
        "9112-3.2.2", (ask_for(7).replace(b"/predict", b"http://loopback/predict"),)
    ),
    "a whole URL, other letters": Rule("9112-3.2.2", (_to(b"HTTP://LoopBack/health/live"),)),
    "a whole URL without a path": Rule("9112-3.2.2", (_to(b"http://loopback"),)),
    "a whole URL with a query": Rule("9112-3.2.2", (_to(b"http://loopback?a"),)),
    "a whole URL elsewhere": rejected("9112-3.2.2", _to(b"http://other/health/live")),
    "a whole URL, other port": rejected("9112-3.2.2", _to(b"http://loopback:81/health/live")),
    "a whole URL with a user": rejected("9112-3.2.2", _to(b"http://me@loopback/health/live")),
    "a whole URL, other scheme": rejected("9112-3.2.2", _to(b"ftp://loopback/health/live")),
    "CONNECT": rejected("9112-3.2.3", _to(b"loopback:80", method=b"CONNECT"), status=501),
    "CONNECT to a path": rejected("9112-3.2.3", _to(b"/predict", method=b"CONNECT"), status=501),
    "an authority for GET": rejected("9112-3.2.3", _to(b"loopback:80")),
    "an asterisk": rejected("9112-3.2.4", _to(b"*", method=b"OPTIONS")),
    "a fragment": rejected("9112-3.2", _to(b"/health/live#a")),
    "a byte above ASCII": rejected("9112-3.2", _to(b"/\xc3\xa4")),
    # 9112-5: headers
    "space before the colon": rejected("9112-5.1", _with_head(b"A : b\r\n")),
    "no colon": rejected("9112-5.1", _with_head(b"A\r\n")),
    "no name": rejected("9112-5.1", _with_head(b": b\r\n")),
    "a name with a space": rejected("9112-5.1", _with_head(b"A b: c\r\n")),
    "a name above ASCII": rejected("9112-5.1", _with_head(b"A\x80: c\r\n")),
    "a folded header": rejected("9112-5.2", _with_head(b"A: b\r\n c\r\n")),
    "NUL in a value": rejected("9110-5.5", _with_head(b"A: b\0\r\n")),
    "a control character in a value": rejected("9110-5.5", _with_head(b"A: b\x01\r\n")),
    # 9112-6: bodies
    "length and chunks": rejected("9112-6.1", START + LENGTH + CHUNKED + b"\r\n0\r\n\r\n"),
    "chunks and length": rejected("9112-6.1", START + CHUNKED + LENGTH + b"\r\n0\r\n\r\n"),
    "chunks in capitals": Rule("9112-6.1", (START + CHUNKED.upper() + b"\r\n" + chunked(BODY, 4),)),
    "chunks, HTTP/1.0": rejected(
        "9112-6.1", (OF_CHUNKS + chunked(BODY, 4)).replace(b"1.1", b"1.0")
    ),
    **{
        f"Transfer-Encoding {coding.decode()!r}": rejected(
            "9112-6.1",
            START + b"Transfer-Encoding: %s\r\n\r\n" % coding + b"0\r\n\r\n",
            status=501 if coding.endswith(b",chunked") or coding.endswith(b"p, chunked") else 400,
        )
        for coding in (
            b"gzip, chunked",
            b"gzip",
            b"identity",
            b"xchunked",
            b"chunked, gzip",
            b"",
            b'"chunked"',
            b"chunked, identity",
            b"chunked, chunked",
            b"\x0bchunked",
            b"deflate, gzip, chunked",
            b"chunked;q=1",
            b",chunked",
        )
    },
    "gzip and chunked apart": rejected(
        "9112-6.1", START + b"Transfer-Encoding: gzip\r\n" + CHUNKED + b"\r\n0\r\n\r\n", status=501
    ),
    "chunked twice": rejected("9112-6.1", START + CHUNKED * 2 + b"\r\n0\r\n\r\n"),
    **{
        f"Content-Length {length.decode()!r}": rejected(
            "9112-6.3", START + b"Content-Length: %s\r\n\r\n" % length + BODY
        )
        for length in (
            b"",
            b"+17",
            b"-17",
            b"0x11",
            b"1_7",
            b"17, 17",
            b"17;",
            b"9" * 30,
            b"1 7",
            b"17.0",
        )
    },
    "two lengths": rejected("9112-6.3", _with_head(b"Content-Length: 5\r\n")),
    "one length twice": rejected("9112-6.3", _with_head(LENGTH)),
    # 9112-7: chunks
    **{
        f"chunk size {size.decode()!r}": rejected("9112-7.1", _chunk(size))
        for size in (
            b"",
            b"0x11",
            b"+11",
            b"-11",
            b" 11",
            b"11 ",
            b"11\t",
            b"f" * 17,
            b"g",
            b'11;a="b',
            b"11\n",
        )
    },
    "more than a chunk's size": rejected("9112-7.1", _chunk(b"10")),
    "LF behind a chunk's size": rejected("9112-7.1", _chunk(b"11").replace(b"11\r\n", b"11\n", 1)),
    "a chunk extension": Rule("9112-7.1.1", (_chunk(b'11;a=b;c="d"'),)),
    "size of a chunk in capitals": Rule(
        "9112-7.1", (request(body=BODY + b" " * 10, chunk_bytes=27).replace(b"1b\r\n", b"1B\r\n"),)
    ),
    # 9112-7.1.2 and 9110-6.5: trailers
    "trailers": Rule("9110-6.5.1", (_ended_by(b"Content-Type: text/csv\r\nHost: other\r\n"),)),
    "a trailer that would be wrong": Rule(
        "9110-6.5.1", (_ended_by(b"X-Torchlane-Timeout-Ms: soon\r\nContent-Encoding: br\r\n"),)
    ),
    "a trailer that expects": Rule("9110-6.5.1", (_ended_by(b"Expect: 100-continue\r\n"),)),
    "a trailer that upgrades": Rule("9110-6.5.1", (_ended_by(b"Upgrade: h2c\r\n"),)),
    "as many trailers as headers": Rule("9110-6.5.1", (_ended_by(b"a: b\r\n" * 128),)),
    "more trailers": rejected("9110-6.5.1", _ended_by(b"a: b\r\n" * 3000), status=431),
    "a trailer that closes": rejected("9110-6.5.1", _ended_by(b"Connection: close\r\n")),
    "a trailer with a length": rejected("9110-6.5.1", _ended_by(b"Content-Length: 5\r\n")),
    "a trailer with a coding": rejected("9110-6.5.1", _ended_by(CHUNKED)),
    # 9112-9: connections
    "pipelined": Rule("9112-9.3.2", (ask_for(7) + READY + ask_for(7),), (200, 200, 200)),
    "behind the last one": Rule(
        "9112-9.6", (ask_for(7, connection="close") + SMUGGLED,), stays=False
    ),
    "HTTP/1.0": Rule("9112-9.3", (ask_for(7, version="1.0"), SMUGGLED), stays=False),
    "HTTP/1.0 without Host": Rule("9112-3.2", (b"GET /health/live HTTP/1.0\r\n\r\n",), stays=False),
    "Expect": Rule("9110-10.1.1", (ask_for(7, expect="100-continue"),)),
}
# What servers and proxies may read as two requests, or one as none: where a body ends.
FRAMING = [
    name
    for name, rule in RULES.items()
    if rule.section.startswith(("9112-6", "9112-7", "9112-9", "9110-6.5", "9110-7.8"))
]
