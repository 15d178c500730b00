"""Connections to a server, on ``http.client``.

1. A request carries a new id. Renewals and releases use connections that waiting claims do not.
2. An answer must have the headers of a leasehold server, the id of its request, and the store of the first answer. Otherwise its effect
   is unknown, and its connection is closed.
3. After an answer of another store, no grant is believed for a minute: servers of two stores are behind this address, and another
   client may hold the same lease there.
4. Nothing was written: no effect. Everything else that fails has an unknown effect. A request that failed on a connection that had
   been idle is sent once more, on a new one, if it may be repeated: the server closes idle connections.
"""

from __future__ import annotations

import http.client
import io
import select
import secrets
import socket
import ssl
import threading
import time
from dataclasses import replace
from typing import Any, Callable, List, Optional, Tuple, Union
from urllib.parse import urlsplit

from . import _clock
from ._cancel import CancelToken
from ._protocol import ANSWER_MAX, Answer, Call
from ._version import VERSION
from .errors import Denied, Invalid, Unavailable

#: Less than the minute after which the server closes an idle connection.
_IDLE_MAX = 30.0
_IDLE_CONNECTIONS_MAX = 8
_CONNECT_TIMEOUT = 5.0
_TWO_STORES_FOR = 60.0

Token = Union[str, Callable[[], str], None]


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline, however slowly the bytes come."""

    def __init__(self, connection: "_TimedSocket") -> None:
        super().__init__()
        self._connection = connection
        self._io: Any = connection.socket.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        self._connection.limit()
        count: Optional[int] = self._io.readinto(buffer)
        return count

    def close(self) -> None:
        self._io.close()
        super().close()


class _TimedSocket:
    """What ``http.client`` uses of a socket, with a deadline for the whole exchange."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.ends_at = 0.0

    def limit(self) -> None:
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(left)

    def sendall(self, data: Any) -> None:
        self.limit()
        self.socket.sendall(data)

    def makefile(self, _mode: str, *_args: Any, **_options: Any) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self))

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Wakes a thread that reads or writes."""
        try:
            # Not the method of a TLS socket, which another thread may be using.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def is_open(self) -> bool:
        """Whether the server has neither closed it nor sent what nobody asked for."""
        try:
            readable, _, _ = select.select([self.socket], [], [], 0)
        except (OSError, ValueError):
            # ValueError: closed, or a number that select() does not take. Then a failed request is sent again.
            return self.socket.fileno() >= 0
        return not readable


class _Connection(http.client.HTTPConnection):
    """One connection. ``used_at`` is when its last answer was read."""

    def __init__(self, host: str, port: int, context: Optional[ssl.SSLContext]) -> None:
        super().__init__(host, port)
        self.default_port = 80 if context is None else 443  # left out of the header Host
        self._context = context
        self.timed: Optional[_TimedSocket] = None
        self.used_at = 0.0

    def open(self, at_most: float) -> None:
        """Connects. If this fails, nothing was sent."""
        plain = socket.create_connection((self.host, self.port), min(_CONNECT_TIMEOUT, at_most))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                plain = self._context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        self.timed = _TimedSocket(plain)
        sock: Any = self.timed
        self.sock = sock

    def connect(self) -> None:
        # `open` connects. Here the connection was closed between two requests, which `_send` rules out.
        raise ConnectionError("the connection is closed")

    def is_fresh(self) -> bool:
        """Whether it may be used for one more request."""
        timed = self.timed
        if timed is None or time.monotonic() - self.used_at >= _IDLE_MAX:
            return False
        return timed.is_open()


class Connections:
    """The connections of one client. Safe to use from several threads."""

    def __init__(
        self, url: str, *, token: Token, ca: Optional[str], cert: Union[str, Tuple[str, str], None]
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid(f"{url!r} is not the address of a server: write http://HOST:PORT or https://HOST")
        if parts.username or parts.password:
            raise Invalid("the address has a user or a password in it: give the token as token=…")
        if parts.query or parts.fragment:
            raise Invalid(f"{url!r} has more than an address")
        try:
            port = parts.port
        except ValueError as error:
            raise Invalid(f"{url!r}: {error}") from error
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._base = parts.path.rstrip("/")
        self.server = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._context = _tls(ca, cert) if parts.scheme == "https" else None
        if self._context is None and (ca or cert):
            raise Invalid("certificates are for https:// addresses")
        self._store: Optional[str] = None
        self._another_store_at: Optional[float] = None
        self._lock = threading.Lock()
        self._idle: Tuple[List[_Connection], List[_Connection]] = ([], [])

    def after_fork(self) -> None:
        """In a forked child: closes its copies of the parent's connections, which goes unseen by the server."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self.close()

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, ([], [])
        for connection in [*idle[0], *idle[1]]:
            connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def check_one_store(self) -> None:
        """Raises ``Unavailable`` if two stores have answered at this address a short while ago."""
        seen = self._another_store_at
        if seen is not None and _clock.now() < seen + _TWO_STORES_FOR:
            raise Unavailable(
                f"{self.server} has answered for another store within the last {_TWO_STORES_FOR:.0f} s, so no lease is taken there: all"
                " servers at one address must have the same store",
                effect="none",
            )

    def call(self, call: Call, cancel: Optional[CancelToken] = None) -> Answer:
        """Sends the request, and returns the answer to it."""
        ends_at = time.monotonic() + call.at_most
        was_repeated = False
        if call.may_repeat:
            connection = self._take(call)
            if connection is not None:
                try:
                    return self._exchange(connection, call, ends_at, cancel)
                except _IdleConnectionBroke:
                    was_repeated = True
                    if cancel is not None:
                        cancel.check()
        connection = _Connection(self._host, self._port, self._context)
        try:
            self._open(connection, ends_at)
        except Unavailable as error:
            error.effect = "unknown" if was_repeated else "none"
            raise
        answer = self._exchange(connection, call, ends_at, cancel)
        return replace(answer, was_repeated=was_repeated)

    def _take(self, call: Call) -> Optional[_Connection]:
        """An idle connection, if there is one that the server has not closed."""
        while True:
            with self._lock:
                idle = self._idle[call.is_upkeep]
                if not idle:
                    return None
                connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()

    def _put(self, call: Call, connection: _Connection) -> None:
        connection.used_at = time.monotonic()
        with self._lock:
            idle = self._idle[call.is_upkeep]
            if len(idle) < _IDLE_CONNECTIONS_MAX:
                idle.append(connection)
                return
        connection.close()

    def _open(self, connection: _Connection, ends_at: float) -> None:
        try:
            connection.open(max(0.01, ends_at - time.monotonic()))
        except ssl.SSLCertVerificationError as error:
            raise Denied(f"{self.server} cannot be trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise Unavailable(f"{self.server} does not speak TLS as expected: {error}", effect="none") from error
        except OSError as error:
            raise Unavailable(f"cannot connect to {self.server}: {error}", effect="none") from error

    def _exchange(
        self, connection: _Connection, call: Call, ends_at: float, cancel: Optional[CancelToken]
    ) -> Answer:
        timed = connection.timed
        assert timed is not None, "it was opened"
        timed.ends_at = ends_at
        was_idle = connection.used_at > 0
        keep = False
        if cancel is not None:
            cancel._add(timed.abort)
        try:
            answer, keep = self._send(connection, call)
        except (OSError, http.client.HTTPException) as error:
            if cancel is not None:
                cancel.check()
            is_broken = isinstance(error, (ConnectionError, http.client.BadStatusLine))
            if was_idle and is_broken and not isinstance(error, TimeoutError):
                raise _IdleConnectionBroke from error
            if isinstance(error, (TimeoutError, socket.timeout)):
                raise Unavailable(f"{self.server} did not answer within {call.at_most:.1f} s") from error
            why = str(error) or type(error).__name__
            raise Unavailable(f"the connection to {self.server} broke before the answer came: {why}") from error
        finally:
            if cancel is not None:
                cancel._remove(timed.abort)
            if not keep:
                connection.close()
        if cancel is not None and cancel.is_cancelled:
            connection.close()  # it may have been aborted just now
        elif keep:
            self._put(call, connection)
        return answer

    def _send(self, connection: _Connection, call: Call) -> Tuple[Answer, bool]:
        """Sends the request and reads the answer; says whether the connection can be used again."""
        request_id = secrets.token_hex(8)
        headers = {"Leasehold-Request": request_id, "User-Agent": f"leasehold-python/{VERSION}"}
        if call.method == "POST":
            headers["Content-Type"] = "application/json"
        token = self._token() if callable(self._token) else self._token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(call.method, self._base + call.path, call.body or None, headers)
        response = connection.getresponse()
        body = response.read(ANSWER_MAX + 1)
        self._check(response, request_id)
        if len(body) > ANSWER_MAX:
            raise Unavailable(f"the answer of {self.server} is too long")
        return Answer(response.status, body), not response.will_close

    def _check(self, response: http.client.HTTPResponse, request_id: str) -> None:
        """That the answer is of a leasehold server, of our store, and to this request."""
        store = response.getheader("Leasehold-Store")
        if store is None or not (response.getheader("Leasehold-Api") or "").startswith("1."):
            raise Unavailable(
                f"{self.server} answered with status {response.status}, and not as a leasehold server does: check the address, and what"
                " stands between this host and the server"
            )
        if response.getheader("Leasehold-Request") != request_id:
            raise Unavailable(f"the answer of {self.server} belongs to another request")
        with self._lock:
            if self._store is None:
                self._store = store
            if self._store == store:
                return
            self._another_store_at = _clock.now()
        raise Unavailable(
            f"{self.server} now serves another store (id {store:.20}, before {self._store}), so its answer says nothing about our leases: all"
            " servers at one address must have the same store"
        )


class _IdleConnectionBroke(Exception):
    """A connection that had been idle broke: the server may have closed it meanwhile."""


def _tls(ca: Optional[str], cert: Union[str, Tuple[str, str], None]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if isinstance(cert, str):
            context.load_cert_chain(cert)
        elif cert is not None:
            context.load_cert_chain(*cert)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"a certificate cannot be read: {error}") from error
    return context
