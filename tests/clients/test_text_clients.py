"""Clients of OpenAI, langchain, infinity and Hugging Face, against a real server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.environments import environment, run
from tests.conftest import Once
from tests.e2e.server import Server, running
from tests.kinds import write_pictures
from tests.text_models import LABELS, SIZE, write_text_model, write_text_models


@pytest.fixture(scope="module")
def clients(once: Once) -> Path:
    """An environment with the clients."""
    return environment(once, "text_clients")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of small text models."""
    folder = tmp_path_factory.mktemp("texts")
    write_text_models(folder / "models")
    with running(folder / "models", folder / "log", default_model="embed") as server:
        yield server


def test_openai(clients: Path, server: Server) -> None:
    run(clients, "-m", "tests.clients.openai_embeddings", server.url, "none")


@pytest.mark.soak
def test_langchain(once: Once, server: Server) -> None:
    """It calls openai's client, and needs twice as many packages."""
    clients = environment(once, "langchain")
    run(clients, "-m", "tests.clients.langchain_embeddings", server.url)


def test_infinity(clients: Path, server: Server) -> None:
    run(clients, "-m", "tests.clients.infinity", server.url)


def test_hugging_face(tmp_path: Path) -> None:
    """Its client is among our own packages; the default model is none of the texts'."""
    models = tmp_path / "models"
    write_pictures(models)
    write_text_model(models, "embed", "embed", SIZE)
    write_text_model(models, "classify", "classify", 3, scores="softmax", labels=LABELS)
    with running(models, tmp_path / "log", default_model="pictures") as server:
        run(Path(sys.prefix), "-m", "tests.clients.hugging_face", server.url)
