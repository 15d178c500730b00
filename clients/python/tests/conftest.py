"""A real server for the tests."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Generator, Iterator, List, Optional, Tuple

import leasehold
import pytest

ROOT = Path(__file__).resolve().parents[3]


def program() -> Path:
    """The program ``leasehold``: LEASEHOLD_PROGRAM, or the one of this repository."""
    path = Path(os.environ.get("LEASEHOLD_PROGRAM", str(ROOT / "target/debug/leasehold")))
    assert path.is_file(), f"{path} is missing: build it with `cargo build -p leasehold-cli`, or set LEASEHOLD_PROGRAM"
    return path


def end_with_parent() -> None:
    """In a child before it starts: it ends when this process does, also when that is killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class Server:
    """A ``leasehold serve`` over SQLite."""

    def __init__(self, folder: Path, more: Optional[List[str]] = None) -> None:
        self.folder = folder
        command = [str(program()), "--store", f"sqlite:{folder / 'leases.db'}", "--json", "serve", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *(more or [])], stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
        )
        assert self.process.stdout is not None
        try:
            line = self.process.stdout.readline()
            try:
                self.url: str = json.loads(line)["listening"]
            except (ValueError, KeyError):
                raise AssertionError(f"the server did not start. Its first line: {line!r}") from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def new_token(file: Path, name: str, role: str) -> str:
    """Makes an API token in this file."""
    command = [str(program()), "token", "--tokens", str(file), "new", name, "--role", role]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def serving(more: Optional[List[str]] = None) -> Generator[Server, None, None]:
    """A server, until the end of the block."""
    with folder() as path:
        server = Server(Path(path), more)
        try:
            yield server
        finally:
            server.stop()


def folder() -> "tempfile.TemporaryDirectory[str]":
    """In memory, if there is such a place: a busy disk delays commits by seconds."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may stop."""
    with serving() as server:
        yield server


@pytest.fixture
def operated() -> Iterator[Tuple[leasehold.Client, leasehold.Client]]:
    """A client and an operator of a server that asks for API tokens."""
    with folder() as path:
        tokens = Path(path) / "tokens.toml"
        client, operator = new_token(tokens, "worker", "client"), new_token(tokens, "ops", "operator")
        with serving(["--tokens", str(tokens)]) as server:
            yield leasehold.Client(server.url, token=client), leasehold.Client(server.url, token=lambda: operator)


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
