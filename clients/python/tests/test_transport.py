"""Answers that are not to be believed, from a server that sends whatever the test wants."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from typing import Callable, Iterator, List

import leasehold
import pytest
from leasehold._names import owner_hash

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
