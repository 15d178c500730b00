"""Connections to a server, on ``http.client``.

1. A request carries a new id. Renewals and releases use connections that waiting claims do not.
2. An answer must have the headers of a leasehold server, the id of its request, and the store of the first answer. Otherwise its effect
   is unknown, and its connection is closed. The same if its body cannot be believed: what reads it says so.
3. After an answer of another store, no grant is believed for a minute: servers of two stores are behind this address, and another
   client may hold the same lease there.
4. Nothing was written: no effect. Everything else that fails has an unknown effect. A request that failed on a connection that had
   been idle is sent once more, on a new one, if it may be repeated: the server closes idle connections.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import re
import secrets
import select
import selectors
import socket
import ssl
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, Union
from urllib.parse import urlsplit

from . import _clock
from ._cancel import CancelToken
from ._protocol import ANSWER_MAX, Answer, Call
from ._version import VERSION
from .errors import Cancelled, Denied, Invalid, Unavailable

#: Less than the minute after which the server closes an idle connection.
_IDLE_MAX = 30.0
_IDLE_CONNECTIONS_MAX = 8
_CONNECT_TIMEOUT = 5.0
_TWO_STORES_FOR = 60.0
#: While it connects, a cancellation is seen this soon.
_CANCEL_CHECK_EVERY = 0.05
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN, getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS))
_API_TOKEN = re.compile(r"[\x21-\x7e]+")
_PATH = re.compile(r"[\x21-\x7e]*")

T = TypeVar("T")
#: ``socket.getaddrinfo`` returns these: family, type, protocol, name, address.
_Address = Tuple[int, int, int, str, Any]

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

    def open(self, plain: socket.socket, ends_at: float, cancel: Optional[CancelToken]) -> None:
        """Makes a connected socket ready for requests. If this fails, nothing was sent."""
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                plain = self._shake_hands(self._context, plain, ends_at, cancel)
        except BaseException:
            plain.close()
            raise
        self.timed = _TimedSocket(plain)
        sock: Any = self.timed
        self.sock = sock

    def _shake_hands(
        self, context: ssl.SSLContext, plain: socket.socket, ends_at: float, cancel: Optional[CancelToken]
    ) -> ssl.SSLSocket:
        plain.settimeout(max(0.01, min(_CONNECT_TIMEOUT, ends_at - time.monotonic())))
        secure = context.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        abort = _TimedSocket(secure).abort
        if cancel is not None:
            cancel._add(abort)
        try:
            secure.do_handshake()
        except BaseException:
            secure.close()
            raise
        finally:
            if cancel is not None:
                cancel._remove(abort)
        return secure

    def connect(self) -> None:
        # `open` connects. Here the connection was closed between two requests, which `_send` rules out.
        raise ConnectionError("the connection is closed")

    def is_fresh(self) -> bool:
        """Whether it may be used for one more request."""
        timed = self.timed
        if timed is None or time.monotonic() - self.used_at >= _IDLE_MAX:
            return False
        return timed.is_open()


class _Pool:
    """Idle connections: those for claims, and those for upkeep."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: Tuple[List[_Connection], List[_Connection]] = ([], [])

    def take(self, is_upkeep: bool) -> Optional[_Connection]:
        """A connection that the server has not closed, if there is one."""
        while True:
            with self.lock:
                idle = self.idle[is_upkeep]
                if not idle:
                    return None
                connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()

    def put(self, is_upkeep: bool, connection: _Connection) -> None:
        connection.used_at = time.monotonic()
        with self.lock:
            idle = self.idle[is_upkeep]
            if len(idle) < _IDLE_CONNECTIONS_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, ([], [])
        for connection in [*idle[0], *idle[1]]:
            connection.close()


class Connections:
    """The connections of one client. Safe to use from several threads."""

    def __init__(
        self, url: str, *, token: Token, ca: Optional[str], cert: Union[str, Tuple[str, str], None]
    ) -> None:
        # No message repeats the address: it may have a password in it.
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Invalid("the address of the server cannot be read: write http://HOST:PORT or https://HOST") from None
        if "@" in parts.netloc:
            raise Invalid("the address has a user or a password in it: give the API token as token=…")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid("the address of the server must be http://HOST:PORT or https://HOST")
        if parts.query or parts.fragment:
            raise Invalid("the address of the server has more than scheme, host, port and path")
        if re.search(r"[\x00-\x20\x7f]", parts.hostname) or not _PATH.fullmatch(parts.path):
            raise Invalid("the address of the server has characters that must be percent-encoded")
        if isinstance(token, str):
            _check_token(token)
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
        #: The address that answered last, which is tried first.
        self._good_address: Any = None
        self._lock = threading.Lock()
        self._pool = _Pool()
        # Not `__del__`: the garbage collector could finalise the sockets first, which warn that they are open.
        weakref.finalize(self, self._pool.close).atexit = False

    def after_fork(self) -> None:
        """In a forked child: closes its copies of the parent's connections, which goes unseen by the server."""
        self._lock = self._pool.lock = threading.Lock()  # another thread of the parent may have held it
        self.close()

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def check_one_store(self) -> None:
        """Raises ``Unavailable`` if two stores have answered at this address a short while ago."""
        seen = self._another_store_at
        if seen is not None and _clock.now() < seen + _TWO_STORES_FOR:
            raise Unavailable(
                f"{self.server} has answered for another store within the last {_TWO_STORES_FOR:.0f} s, so no lease is taken there: all"
                " servers at one address must have the same store",
                effect="none",
            )

    def call(self, call: Call, read: Callable[[Answer], T], cancel: Optional[CancelToken] = None) -> T:
        """Sends the request, and returns what ``read`` makes of the answer to it."""
        ends_at = time.monotonic() + call.at_most
        token = self._token() if callable(self._token) else self._token
        headers = {} if token is None else {"Authorization": f"Bearer {_check_token(token)}"}
        was_repeated = False
        if call.may_repeat:
            connection = self._pool.take(call.is_upkeep)
            if connection is not None:
                try:
                    return self._exchange(connection, call, headers, read, ends_at, cancel)
                except _IdleConnectionBroke:
                    was_repeated = True
        connection = _Connection(self._host, self._port, self._context)
        try:
            self._open(connection, ends_at, cancel)
        except (Unavailable, Cancelled) as error:
            error.effect = "unknown" if was_repeated else "none"
            raise
        return self._exchange(connection, call, headers, read, ends_at, cancel, was_repeated)

    def _open(self, connection: _Connection, ends_at: float, cancel: Optional[CancelToken]) -> None:
        try:
            connection.open(self._connect(ends_at, cancel), ends_at, cancel)
            if cancel is not None:
                cancel.check()
        except Cancelled:
            connection.close()
            raise
        except ssl.SSLCertVerificationError as error:
            raise Denied(f"{self.server} cannot be trusted: {error.verify_message}") from error
        except UnicodeError:
            raise Invalid(f"{self.server} has a host name that cannot be one") from None
        except OSError as error:
            if cancel is not None:
                cancel.check()
            if isinstance(error, ssl.SSLError):
                raise Unavailable(f"{self.server} does not speak TLS as expected: {error}", effect="none") from error
            raise Unavailable(f"cannot connect to {self.server}: {error}", effect="none") from error

    def _connect(self, ends_at: float, cancel: Optional[CancelToken]) -> socket.socket:
        """Connects to one of the addresses of the server. An address that does not answer leaves time for the others."""
        given = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        found: List[_Address] = sorted(given, key=lambda address: address[4] != self._good_address)
        for tried, address in enumerate(found):
            left = ends_at - time.monotonic()
            try:
                plain = _connect_to(address, min(_CONNECT_TIMEOUT, left / (len(found) - tried)), cancel)
            except OSError:
                if address is found[-1]:
                    raise
            else:
                self._good_address = address[4]
                return plain
        raise OSError("its name has no address")

    def _exchange(
        self,
        connection: _Connection,
        call: Call,
        headers: Dict[str, str],
        read: Callable[[Answer], T],
        ends_at: float,
        cancel: Optional[CancelToken],
        was_repeated: bool = False,
    ) -> T:
        timed = connection.timed
        assert timed is not None, "it was opened"
        timed.ends_at = ends_at
        was_idle = connection.used_at > 0
        keep = False
        if cancel is not None:
            cancel._add(timed.abort)
        try:
            answer, may_keep = self._send(connection, call, headers)
            answer.was_repeated = was_repeated
            try:
                return read(answer)
            finally:
                # A refusal is raised, and is an answer like any other.
                keep = may_keep and not answer.drop_connection
        except (OSError, http.client.HTTPException) as error:
            if cancel is not None and cancel.is_cancelled:
                cancelled = Cancelled("the caller cancelled")
                cancelled.effect = "unknown"
                raise cancelled from error
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
            # Cancelled just now, it may have been shut down.
            if keep and not (cancel is not None and cancel.is_cancelled):
                self._pool.put(call.is_upkeep, connection)
            else:
                connection.close()

    def _send(self, connection: _Connection, call: Call, more: Dict[str, str]) -> Tuple[Answer, bool]:
        """Sends the request and reads the answer; says whether the connection can be used again."""
        request_id = secrets.token_hex(8)
        headers = {**more, "Leasehold-Request": request_id, "User-Agent": f"leasehold-python/{VERSION}"}
        if call.method == "POST":
            headers["Content-Type"] = "application/json"
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


def _check_token(token: str) -> str:
    # An exception of http.client would repeat the token.
    if not _API_TOKEN.fullmatch(token):
        raise Invalid("the API token has characters that a token cannot have, such as a line break at its end")
    return token


def _connect_to(address: _Address, at_most: float, cancel: Optional[CancelToken]) -> socket.socket:
    """A socket that is connected to this address."""
    ends_at = time.monotonic() + at_most
    family, kind, protocol, _, name = address
    plain = socket.socket(family, kind, protocol)
    try:
        plain.setblocking(False)
        failure = plain.connect_ex(name)
        if failure in _IN_PROGRESS:
            with selectors.DefaultSelector() as selector:
                selector.register(plain, selectors.EVENT_WRITE)
                while True:
                    if cancel is not None:
                        cancel.check()
                    left = ends_at - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("timed out")
                    if selector.select(min(left, _CANCEL_CHECK_EVERY)):
                        break
            failure = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))
        plain.setblocking(True)
    except BaseException:
        plain.close()
        raise
    return plain


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
