"""The connection of a run to its server, against one that closes it after each answer."""

from __future__ import annotations

import socket
import threading

import pytest

from app.bulk.errors import BulkError
from app.bulk.handlers.bodies import Body
from app.bulk.handlers.client import Client, Outcome
from app.codecs.base import JSON

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n7"
OVER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 0\r\n"
    b'Content-Length: 55\r\n\r\n{"error": "full", "code": "overloaded", "request_id":1}'
)


def test_a_closed_connection_is_opened_again_and_a_busy_server_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in (ANSWER, OVER, ANSWER):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        client = Client("127.0.0.1", listener.getsockname()[1], "key", 20)
        for _ in range(2):  # the second one gets 503 first
            outcome = client.ask("/predict", Body(JSON, b"1"), lambda: None)
            assert outcome == Outcome(None, JSON, b"7")
        serving.join()
    with pytest.raises(BulkError, match="does not answer"):
        client.ask("/predict", Body(JSON, b"1"), lambda: None)
