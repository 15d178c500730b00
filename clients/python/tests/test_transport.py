"""Answers that are not to be believed, from a server that sends whatever the test wants."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import leasehold
import pytest
from leasehold import _clock, _process
from leasehold._names import owner_hash
from test_leases import no_threads

Respond = Callable[[bytes], bytes]


class FakeServer:
    """Answers each request with what ``respond`` makes of it; an empty answer closes the connection."""

    def __init__(self) -> None:
        self.respond: Respond = lambda request: grant(request)
        self.requests: List[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                request = self._read(connection)
                if request is None:
                    return
                self.requests.append(request)
                answer = self.respond(request)
                if not answer:
                    return
                try:
                    connection.sendall(answer)
                except OSError:
                    return

    def _read(self, connection: socket.socket) -> "bytes | None":
        text = b""
        while True:
            try:
                more = connection.recv(65536)
            except OSError:
                return None
            if not more:
                return None
            text += more
            head, end, body = text.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if end and len(body) >= (int(length[1]) if length else 0):
                return text

    def close(self) -> None:
        close_listener(self._listener)


def close_listener(listener: socket.socket) -> None:
    """Also wakes the thread that accepts, which would take one more connection."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # macOS refuses this for a listener
    listener.close()


def grant(request: bytes, store: str = "aa", more: str = "", request_id: "str | None" = None, body: "bytes | None" = None) -> bytes:
    """A well-formed grant of whatever was asked for."""
    asked = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
    sent_id = re.search(rb"leasehold-request: (\w+)", request, re.IGNORECASE)
    assert sent_id is not None
    if body is None:
        name, hashed = asked["resource"], owner_hash(asked["owner"])
        verdict = "released" if b"/v1/release" in request else "granted"
        answer = {"verdict": verdict, "resource": name, "key": name, "owner_hash": hashed, "token": "5"}
        answer.update({"pass": f"5 {hashed} {name}", "ttl_ms": 30000, "remaining_ms": 30000, "waited_ms": 0})
        body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nleasehold-api: 1.0\r\nleasehold-store: {store}\r\n"
        f"leasehold-request: {request_id or sent_id[1].decode()}\r\n{more}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


def fails(fake: FakeServer, effect: str = "unknown", timeout: float = 10) -> leasehold.Unavailable:
    client = leasehold.Client(fake.url, timeout=timeout, release_timeout=0.2)
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/1").acquire()
    assert caught.value.effect == effect
    return caught.value


def test_a_well_formed_grant_is_believed(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url, token=lambda: "lh_1_2")
    with client.lease("report/1") as lease:
        assert lease.token == 5
    assert re.search(rb"(?i)authorization: bearer lh_1_2", fake.requests[0])
    assert fake.connections == 2, "releases have connections of their own"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-len",
        b"",
    ],
)
def test_what_is_not_a_leasehold_server_is_not_believed(fake: FakeServer, answer: bytes) -> None:
    fake.respond = lambda request: answer
    if answer.endswith(b"len"):
        fails(fake, timeout=1)
    else:
        fails(fake)


def test_an_answer_to_another_request_is_not_believed(fake: FakeServer) -> None:
    fake.respond = lambda request: grant(request, request_id="00ff00ff00ff00ff")
    assert "another request" in str(fails(fake))


def test_a_body_that_is_cut_is_not_believed(fake: FakeServer) -> None:
    cut = threading.Event()

    def respond(request: bytes) -> bytes:
        if cut.is_set():
            return b""
        cut.set()
        return grant(request)[:-10]

    fake.respond = respond
    client = leasehold.Client(fake.url, timeout=1, release_timeout=0.2)
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/1").acquire()
    assert caught.value.effect == "unknown"


def test_after_an_unanswered_claim_a_tombstone_is_left(fake: FakeServer) -> None:
    fake.respond = lambda request: b""
    fails(fake)
    ends_at = time.monotonic() + 30
    while not any(b"/v1/release" in request for request in list(fake.requests)):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    release = next(request for request in fake.requests if b"/v1/release" in request)
    asked = json.loads(fake.requests[0].partition(b"\r\n\r\n")[2])
    buried = json.loads(release.partition(b"\r\n\r\n")[2])
    assert buried == {"resource": "report/1", "owner": asked["owner"], "bury_ms": 180_000}


def test_no_connection_has_no_effect(fake: FakeServer) -> None:
    fake.close()
    client = leasehold.Client(fake.url)
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/1").acquire()
    assert caught.value.effect == "none"


def test_another_store_is_never_believed(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url)
    with client.lease("report/1"):
        pass
    fake.respond = lambda request: grant(request, store="bb")
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/2").acquire()
    assert caught.value.effect == "unknown" and "another store" in str(caught.value)
    # The first store is back, but the second one may have granted the same lease to another client.
    fake.respond = lambda request: grant(request)
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/3").acquire()
    assert caught.value.effect == "none"


def test_a_slow_trickle_is_bounded() -> None:
    stop = threading.Event()

    sent = FakeTrickle(stop)
    client = leasehold.Client(sent.url, timeout=1)
    started = time.monotonic()
    with pytest.raises(leasehold.Unavailable):
        client.info()
    assert time.monotonic() - started < 10, "each byte came in time, the answer did not"
    stop.set()
    close_listener(sent.listener)


class FakeTrickle:
    """Sends one byte of a header every tenth of a second."""

    def __init__(self, stop: threading.Event) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.stop = stop
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not self.stop.wait(0.1):
                    connection.sendall(b"x")
            except OSError:
                pass


def test_an_idle_connection_that_the_server_closed_is_replaced(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url)
    with client.lease("report/1"):
        pass
    once = threading.Event()

    def respond(request: bytes) -> bytes:
        if not once.is_set():
            once.set()
            return b""  # closes the idle connection with the request in it
        return grant(request)

    fake.respond = respond
    with client.lease("report/2") as lease:
        assert lease.token == 5
    acquires = [request for request in fake.requests if b"/v1/acquire" in request]
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in acquires]
    assert len(bodies) == 3 and bodies[1] == bodies[2], "the same claim, with the same owner token"
    releases = [request for request in fake.requests if b"/v1/release" in request]
    assert b"bury_ms" not in releases[0] and b"bury_ms" in releases[1], "the first one may still be on its way"


def test_a_repeated_request_that_finds_no_server_may_have_had_an_effect(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url)
    with client.lease("report/1"):
        pass

    def respond(request: bytes) -> bytes:
        fake.close()
        return b""

    fake.respond = respond
    with pytest.raises(leasehold.Unavailable) as caught:
        client.try_lease("report/2").acquire()
    assert caught.value.effect == "unknown"


def test_orders_are_never_sent_twice(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url)
    with client.lease("report/1"):
        pass
    fake.respond = lambda request: b""
    with pytest.raises(leasehold.Unavailable) as caught:
        client.order("evict", "report/1", any=True, why="the test")
    assert caught.value.effect == "unknown"
    assert len([request for request in fake.requests if b"/v1/orders" in request]) == 1


def test_a_connection_that_is_to_be_closed_is_not_used_again(fake: FakeServer) -> None:
    fake.respond = lambda request: grant(request, more="connection: close\r\n")
    client = leasehold.Client(fake.url)
    for number in range(3):
        client.lease(f"report/{number}").acquire().release()
    assert fake.connections == 6
    client.close()


def test_certificates_are_checked() -> None:
    import shutil
    import ssl
    import subprocess
    import tempfile

    assert shutil.which("openssl"), "openssl is needed"
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", certificate]
        subprocess.run([*command, *subject], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listener = socket.create_server(("127.0.0.1", 0))

        def serve(plain: socket.socket) -> None:
            try:
                with context.wrap_socket(plain, server_side=True) as connection:
                    while request := connection.recv(65536):
                        while not request.endswith(b"}"):
                            request += connection.recv(65536)
                        connection.sendall(grant(request))
            except OSError:
                plain.close()

        def accept() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(plain,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with leasehold.Client(url, ca=certificate).lease("report/1") as lease:
            assert lease.token == 5
        with pytest.raises(leasehold.Denied):
            leasehold.Client(url).try_lease("report/1").acquire()
        with pytest.raises(leasehold.Invalid):
            leasehold.Client(url, ca=f"{folder}/none.pem")
        close_listener(listener)


def problem(request: bytes, kind: str, status: int, **fields: Any) -> bytes:
    """A refusal of what was asked for."""
    asked = json.loads(request.partition(b"\r\n\r\n")[2])
    told = {"kind": kind, "status": status, "title": kind, "effect": "none", **fields}
    told.update(key=asked["resource"], owner_hash=owner_hash(asked["owner"]))
    return grant(request, body=json.dumps(told).encode()).replace(b"200 OK", f"{status} {kind}".encode(), 1)


def owners(fake: FakeServer, path: bytes) -> List[str]:
    """The owner tokens of the requests to this path."""
    bodies = [request.partition(b"\r\n\r\n")[2] for request in list(fake.requests) if path in request]
    return [json.loads(body)["owner"] for body in bodies]


def await_request(fake: FakeServer, path: bytes, count: int = 1) -> None:
    ends_at = time.monotonic() + 30
    while sum(path in request for request in list(fake.requests)) < count:
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_no_grant_lasts_longer_than_was_asked_for(fake: FakeServer) -> None:
    fake.respond = lambda request: grant(request).replace(b"30000", b"90000").replace(b'"waited_ms": 0', b'"waited_ms": 9')
    with leasehold.Client(fake.url).lease("report/1", ttl=20) as lease:
        assert lease.ttl == 20 and lease.remaining < 20

    def waited(request: bytes) -> bytes:
        body = grant(request).partition(b"\r\n\r\n")[2].replace(b'"waited_ms": 0', b'"waited_ms": 3600000')
        return grant(request, body=body)

    fake.respond = waited
    with leasehold.Client(fake.url).lease("report/1", ttl=20) as lease:
        assert lease.remaining < 30


def test_an_answer_that_names_another_claim_costs_its_connection(fake: FakeServer) -> None:
    """What follows on that connection may belong to another request, too."""
    client = leasehold.Client(fake.url, release_timeout=0.2)

    def respond(request: bytes) -> bytes:
        return grant(request).replace(b'"key": "report/1"', b'"key": "report/2"')

    fake.respond = respond
    with pytest.raises(leasehold.Unavailable, match="another claim"):
        client.try_lease("report/1").acquire()
    assert client.connections._pool.idle[0] == []
    fake.respond = lambda request: problem(request, "contended", 423, holders=[])
    for _ in range(2):
        with pytest.raises(leasehold.Busy):
            client.try_lease("report/1").acquire()
    assert len(client.connections._pool.idle[0]) == 1, "a refusal is an answer like any other"


def test_what_follows_an_unanswered_claim_may_have_had_an_effect(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url, release_timeout=0.2)

    def respond(request: bytes) -> bytes:
        fake.close()
        return b""

    fake.respond = respond
    with pytest.raises(leasehold.Unavailable, match="cannot connect") as caught:
        client.lease("report/1", wait=0.5).acquire()
    assert caught.value.effect == "unknown"


def test_a_grant_beside_another_store_may_have_had_an_effect(fake: FakeServer) -> None:
    client = leasehold.Client(fake.url)

    def respond(request: bytes) -> bytes:
        client.connections._another_store_at = _clock.now()  # by another request, meanwhile
        return grant(request)

    fake.respond = respond
    with pytest.raises(leasehold.Unavailable, match="another store") as caught:
        client.try_lease("report/1").acquire()
    assert caught.value.effect == "unknown"
    await_request(fake, b"/v1/release")


def test_a_claim_whose_owner_token_is_used_up_begins_anew(fake: FakeServer) -> None:
    """Its grant was not answered, and an operator evicted it."""
    answers: List[Callable[[bytes], bytes]] = [lambda _: b"", lambda request: problem(request, "lost", 410, why="evicted")]

    def respond(request: bytes) -> bytes:
        if b"/v1/acquire" in request and answers:
            return answers.pop(0)(request)
        return grant(request)

    fake.respond = respond
    with leasehold.Client(fake.url).lease("report/1", wait=30):
        first, second, third = owners(fake, b"/v1/acquire")
        assert first == second != third
    await_request(fake, b"/v1/release", 2)
    assert set(owners(fake, b"/v1/release")) == {first, third}


def test_a_try_is_not_repeated_without_end(fake: FakeServer) -> None:
    fake.respond = lambda request: problem(request, "lost", 410, why="buried")
    fails(fake, effect="none")
    assert len(set(owners(fake, b"/v1/acquire"))) == 4


def test_a_forgotten_client_closes_its_connections(fake: FakeServer) -> None:
    """Also if the garbage collector comes to the sockets first. A warning of an open socket fails the test."""
    older = leasehold.Client(fake.url)
    with older.lease("report/1"):
        pass
    gc.collect()
    client = leasehold.Client(fake.url)
    client.connections._pool.idle, older.connections._pool.idle = older.connections._pool.idle, ([], [])
    cycle: Any = client
    cycle.itself = [client]
    del client, cycle
    gc.collect()


class Pauses(leasehold.CancelToken):
    """Does not sleep, and is cancelled after some pauses."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.pauses: List[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self.count:
            self.cancel()
        self.check()


def test_a_server_that_drains_is_asked_less_and_less(fake: FakeServer) -> None:
    fake.respond = lambda request: problem(request, "draining", 503)
    cancel = Pauses(8)
    with pytest.raises(leasehold.Cancelled):
        leasehold.Client(fake.url).lease("report/1", wait=None).acquire(cancel=cancel)
    assert cancel.pauses[0] <= 0.1 and cancel.pauses[-1] >= 1.5
    fake.respond = lambda request: problem(request, "throttled", 429, retry_after_ms=7000)
    cancel = Pauses(8)
    with pytest.raises(leasehold.Cancelled):
        leasehold.Client(fake.url).lease("report/1", wait=None).acquire(cancel=cancel)
    assert min(cancel.pauses) >= 7 and len(set(cancel.pauses)) > 1, "not all at the same time"


def test_a_server_that_does_not_wait_is_asked_less_and_less(fake: FakeServer) -> None:
    def respond(request: bytes) -> bytes:
        return grant(request).replace(b"200 OK", b"202 Accepted", 1).replace(b"granted", b"queued ", 1)

    def queued(request: bytes) -> bytes:
        return respond(request).replace(b'"queued "', b'"queued" ')

    fake.respond = queued
    cancel = Pauses(8)
    with pytest.raises(leasehold.Cancelled):
        leasehold.Client(fake.url).lease("report/1", wait=None).acquire(cancel=cancel)
    assert 0 < cancel.pauses[0] <= 0.1 and cancel.pauses[-1] == 0.4, "a place lasts for a second"


def test_a_request_is_in_use_while_it_is_acquired(fake: FakeServer) -> None:
    asked, go = threading.Event(), threading.Event()

    def respond(request: bytes) -> bytes:
        if not asked.is_set():
            asked.set()
            go.wait(30)
        return grant(request)

    fake.respond = respond
    request = leasehold.Client(fake.url).lease("report/1")
    entered: List[int] = []

    def enter() -> None:
        with request as lease:
            entered.append(lease.token)

    entering = threading.Thread(target=enter)
    entering.start()
    assert asked.wait(30)
    with pytest.raises(leasehold.Invalid, match="in use"):
        with request:
            pass
    go.set()
    entering.join(30)
    assert entered == [5]
    fake.respond = lambda request: problem(request, "contended", 423, holders=[])
    for _ in range(2):  # it can be used again after an error
        with pytest.raises(leasehold.Busy):
            with leasehold.Client(fake.url).try_lease("report/1"):
                pass


def test_several_that_use_up_their_time_have_timed_out(fake: FakeServer) -> None:
    def respond(request: bytes) -> bytes:
        if b"report/2" in request and b"/v1/acquire" in request:
            return problem(request, "contended", 423, holders=[])
        time.sleep(0.5)
        return grant(request)

    fake.respond = respond
    client = leasehold.Client(fake.url)
    with pytest.raises(leasehold.TimedOut):
        client.all(client.lease("report/1"), client.lease("report/2"), wait=0.3).acquire()


def resource(request: bytes, unreadable: "str | None", cursor: str) -> bytes:
    seen: Dict[str, Any] = {"resource": "report/1", "key": "report/1", "capacity": 1, "holders": [], "holder_count": 0, "queue": []}
    seen.update({"queue_length": 0, "cursor": cursor, "unreadable": unreadable})
    return grant(request, body=json.dumps(seen).encode())


def test_a_resource_that_cannot_be_read_does_not_say_that_nobody_leads(fake: FakeServer) -> None:
    election = leasehold.Client(fake.url).election("report/1")
    fake.respond = lambda request: resource(request, "its value is broken", "")
    with pytest.raises(leasehold.Unavailable, match="not known"):
        election.leader()
    looks: List[int] = []

    def respond(request: bytes) -> bytes:
        looks.append(1)
        return resource(request, "its value is broken" if len(looks) < 3 else None, "c")

    fake.respond = respond
    assert election.observe().next() is None and len(looks) == 3


@pytest.fixture
def silent() -> Iterator[Tuple[str, int]]:
    """An address that does not answer a connection."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    address: Tuple[str, int] = listener.getsockname()
    filling = [socket.socket() for _ in range(4)]
    for connection in filling:
        connection.setblocking(False)
        connection.connect_ex(address)
    yield address
    for connection in [*filling, listener]:
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only there a full backlog leaves a connection without an answer")
def test_connecting_is_cancelled(silent: Tuple[str, int]) -> None:
    client = leasehold.Client(f"http://127.0.0.1:{silent[1]}", timeout=60)
    cancel = leasehold.CancelToken()
    threading.Timer(0.3, cancel.cancel).start()
    with pytest.raises(leasehold.Cancelled) as caught:
        client.try_lease("report/1").acquire(cancel=cancel)
    assert caught.value.effect == "none"


@pytest.mark.skipif(sys.platform != "linux", reason="only there a full backlog leaves a connection without an answer")
def test_an_address_that_does_not_answer_leaves_time_for_the_others(
    fake: FakeServer, silent: Tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = ("127.0.0.1", int(fake.url.rsplit(":", 1)[1]))

    def found(*_args: Any, **_options: Any) -> List[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (silent, alive)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    client = leasehold.Client(fake.url, timeout=4)
    lease = client.try_lease("report/1").acquire()
    lease.release()
    assert client.connections._good_address == alive, "it is tried first from now on"


def test_one_release_is_tried_while_the_program_ends(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.respond = lambda request: b"" if b"/v1/release" in request else grant(request)
    client = leasehold.Client(fake.url)
    for is_ending in (False, True):
        lease = client.lease("report/1").acquire()
        with no_threads():
            monkeypatch.setattr(_process, "is_ending", lambda: is_ending)
            lease.release()
        assert len(owners(fake, b"/v1/release")) == is_ending, "elsewhere the caller may be an event loop"


PROGRAM = """
import asyncio, sys, threading, time
import leasehold

def token():
    if threading.current_thread() is not first:
        time.sleep(0.5)  # the release is slow
    return "lh_1_2"

first = threading.current_thread()
client = leasehold.Client(sys.argv[1], token=token)
client.lease("report/0").acquire().release()
if sys.argv[2] == "threads":
    client.lease("report/1", wait=60).acquire()
else:
    first = None
    async def main():
        first = asyncio.create_task(client.lease("report/1", wait=60).acquire_async())
        await asyncio.to_thread(sys.stdin.read)
        first.cancel()
    asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_end_of_a_program_waits_for_its_releases(fake: FakeServer, kind: str) -> None:
    go = threading.Event()

    def respond(request: bytes) -> bytes:
        if b"/v1/acquire" in request and b"report/1" in request:
            go.wait(30)
            return b""
        return grant(request)

    fake.respond = respond
    source = str(Path(leasehold.__file__).parents[1])
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", PROGRAM, fake.url, kind]
    # A shell starts background commands with SIGINT ignored, which a child inherits.
    program = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        await_request(fake, b"/v1/acquire", 2)
        if kind == "threads":
            program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
        given_up = owners(fake, b"/v1/acquire")[1]
        assert given_up in owners(fake, b"/v1/release")
        assert b"ResourceWarning" not in errors, "its connections are closed"
    finally:
        go.set()
        program.kill()
        program.communicate()
