"""A real server for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator, List, Optional

import leasehold
import pytest

ROOT = Path(__file__).resolve().parents[3]


def program() -> Path:
    """The program ``leasehold``: LEASEHOLD_PROGRAM, or the one of this repository."""
    path = Path(os.environ.get("LEASEHOLD_PROGRAM", str(ROOT / "target/debug/leasehold")))
    assert path.is_file(), f"{path} is missing: build it with `cargo build -p leasehold-cli`, or set LEASEHOLD_PROGRAM"
    return path


class Server:
    """A ``leasehold serve`` over SQLite."""

    def __init__(self, folder: Path, more: Optional[List[str]] = None) -> None:
        self.folder = folder
        command = [str(program()), "--store", f"sqlite:{folder / 'leases.db'}", "--json", "serve", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen([*command, *(more or [])], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["listening"]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def folder() -> "tempfile.TemporaryDirectory[str]":
    """In memory, if there is such a place: a busy disk delays commits by seconds."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with folder() as path:
        server = Server(Path(path))
        yield server
        server.stop()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may stop."""
    with folder() as path:
        server = Server(Path(path))
        yield server
        server.stop()


@pytest.fixture
def client(server: Server) -> leasehold.Client:
    return leasehold.Client(server.url, label="the tests")


@pytest.fixture
def other(server: Server) -> leasehold.Client:
    """Somebody else."""
    return leasehold.Client(server.url, label="somebody else", host="elsewhere")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A resource that no other test uses."""
    return f"test/{request.node.name}"
