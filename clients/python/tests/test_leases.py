"""Leases of threads, on a real server."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, AsyncIterator, Callable, Generator, Iterator, List, Tuple

import leasehold
import pytest
from conftest import Server
from leasehold import _clock, _process

Operated = Tuple[leasehold.Client, leasehold.Client]


def test_with_holds_and_releases(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    with client.lease(name, note="step 1") as lease:
        lease.check()
        assert lease.is_held and not lease.lost.is_set() and 20 < lease.remaining < 30
        assert lease.pass_.split(" ", 2)[0] == str(lease.token) and lease.pass_.endswith(name)
        holder = other.resource(name).holders[0]
        assert (holder.token, holder.note, holder.pid, holder.label) == (lease.token, b"step 1", os.getpid(), "the tests")
        lease.set_note(b"\xff\x00")
        assert other.resource(name).holders[0].note == b"\xff\x00"
        with pytest.raises(leasehold.Busy) as caught:
            other.try_lease(name).acquire()
        assert caught.value.holders[0].label == "the tests" and 0 < caught.value.retry_after <= 30
        assert not isinstance(caught.value, leasehold.TimedOut)
    assert other.resource(name).holders == ()
    with pytest.raises(leasehold.Lost) as lost:
        lease.check()
    assert lost.value.why == "released" and not lease.lost.is_set()
    lease.release()


def test_the_error_of_the_body_comes_out(own_server: Server, name: str) -> None:
    client = leasehold.Client(own_server.url, release_timeout=0.5)
    with pytest.raises(ZeroDivisionError):
        with client.lease(name):
            own_server.process.send_signal(signal.SIGSTOP)
            raise ZeroDivisionError
    own_server.process.send_signal(signal.SIGCONT)


def test_waiting_is_bounded_and_cancelled(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    with other.lease(name):
        with pytest.raises(leasehold.TimedOut) as caught:
            client.lease(name, wait=0.2).acquire()
        assert caught.value.holders[0].host == "elsewhere"
        cancel = leasehold.CancelToken()
        threading.Timer(0.3, cancel.cancel).start()
        started = time.monotonic()
        with pytest.raises(leasehold.Cancelled):
            client.lease(name, wait=None).acquire(cancel=cancel)
        assert time.monotonic() - started < 10
        await_queue(other, name, 0)
        with pytest.raises(leasehold.Cancelled):
            client.lease(name).acquire(cancel=cancel)


def await_queue(client: leasehold.Client, name: str, length: int) -> None:
    ends_at = time.monotonic() + 30
    while client.resource(name).queue_length != length:
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_many_threads_hold_it_one_at_a_time(client: leasehold.Client, name: str) -> None:
    inside: List[int] = []
    tokens: List[int] = []

    def work(number: int) -> None:
        with client.lease(name, wait=60) as lease:
            inside.append(number)
            tokens.append(lease.token)
            assert inside == [number]
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert tokens == sorted(set(tokens)) and len(tokens) == 40


def test_a_decorated_function_runs_under_its_lease(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    def resource(part: str, **_options: int) -> str:
        return f"{name}-{part}"

    @client.locked(resource, wait=0)
    def export(part: str, *, times: int = 1) -> int:
        """Exports."""
        assert other.resource(f"{name}-{part}").holders[0].token == leasehold.current_lease().token
        with pytest.raises(leasehold.Busy):
            export(part)
        return times

    assert export("a", times=3) == 3 and export.__doc__ == "Exports."
    with pytest.raises(leasehold.Invalid):
        leasehold.current_lease()


def test_a_request_is_for_one_block_at_a_time(client: leasehold.Client, name: str) -> None:
    request = client.lease(name)
    with request:
        with pytest.raises(leasehold.Invalid):
            with request:
                pass
    with request as lease:
        lease.check()
    with request.copy() as lease:
        lease.check()


def test_several_are_all_or_none(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    names = [f"{name}-b", f"{name}-a", f"{name}-c"]
    with client.all(*(client.lease(each) for each in names)) as leases:
        assert [lease.resource for lease in leases] == sorted(names)
        assert leases[f"{name}-b"].token > 0 and len(leases) == 3
        leases.check()
        with pytest.raises(leasehold.Busy):
            other.all(other.lease(f"{name}-0"), other.lease(f"{name}-c"), wait=0).acquire()
        leases[f"{name}-a"]._mark_lost("evicted")
        assert leases.lost.is_set() and not leases.is_held
        with pytest.raises(leasehold.Lost) as caught:
            leases.check()
        assert caught.value.why == "evicted"
    for each in [*names, f"{name}-0"]:
        await_free(other, each)


def await_free(client: leasehold.Client, name: str) -> None:
    ends_at = time.monotonic() + 30
    while client.resource(name).holders:
        assert time.monotonic() < ends_at, name
        time.sleep(0.02)


def test_a_loss_is_told_once_and_for_good(client: leasehold.Client, name: str) -> None:
    told: "List[leasehold.Lease]" = []
    was_told = threading.Event()

    def tell(lease: leasehold.Lease) -> None:
        told.append(lease)
        was_told.set()

    lease = client.lease(name, on_lost=tell).acquire()
    lease._mark_lost("not_there")
    lease._mark_lost("evicted")
    assert was_told.wait(30) and lease.lost.is_set() and told == [lease]
    assert lease.loss().why == "not_there" and lease.remaining == 0
    with pytest.raises(leasehold.Lost):
        lease.set_note("late")
    lease.release()
    await_free(client, name)
    assert told == [lease]


def test_a_lease_that_is_evicted_is_not_extended(client: leasehold.Client, own_server: Server, name: str) -> None:
    client = leasehold.Client(own_server.url)
    lease = client.lease(name, ttl=2).acquire()
    # What an operator does; this server gives no orders without tokens.
    from leasehold._protocol import Kept
    from leasehold._times import Sent

    lease._was_renewed(Sent(_clock.now(), time.time()), Kept(ttl=2, remaining=1, asked=None, evicting=True))
    assert lease.evicting and lease.lost.wait(30) and lease.loss().why == "evicted"


def test_a_dropped_lease_is_not_renewed(client: leasehold.Client, name: str) -> None:
    lease = client.lease(name, ttl=1).acquire()
    number = id(lease)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
        ends_at = time.monotonic() + 10
        while number in _process.current().leases and time.monotonic() < ends_at:
            time.sleep(0.1)
            gc.collect()
    assert any(issubclass(warning.category, ResourceWarning) for warning in caught)
    await_free(client, name)


def test_a_resource_can_be_kept_closed(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    with client.lease(name) as lease:
        lease.release(keep_for=3)
        with pytest.raises(leasehold.Busy) as caught:
            other.try_lease(name).acquire()
        assert caught.value.holders[0].kept and client.election(name).leader() is None
    with other.lease(name, wait=30):
        pass


def test_shared_leases_have_numbers(client: leasehold.Client, name: str) -> None:
    with client.semaphore(name, capacity=3, weight=2) as lease:
        assert lease.is_shared and lease.number
        for wrong in ("token", "pass_"):
            with pytest.raises(leasehold.Invalid):
                getattr(lease, wrong)
        with pytest.raises(leasehold.Mismatch) as caught:
            client.semaphore(name, capacity=4).acquire()
        assert caught.value.capacity == 3
    with client.read(f"{name}-doc"), client.read(f"{name}-doc"):
        with pytest.raises(leasehold.Busy):
            client.write(f"{name}-doc", wait=0).acquire()


def test_an_election_has_a_leader_with_a_value(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    election, cancel = client.election(name), leasehold.CancelToken()
    observed = iter(other.election(name).observe())
    assert next(observed) is None and election.leader() is None
    terms: List[int] = []

    def work(lead: leasehold.Lease) -> str:
        terms.append(lead.token)
        leader = next(observed)
        assert leader is not None and (leader.value, leader.token) == ("a:80", lead.token)
        if len(terms) == 1:
            lead._mark_lost("not_there")
            lead.check()
        return "done"

    def skip_none() -> None:
        # Between two terms nobody leads, which the observer may or may not see.
        nonlocal observed
        observed = iter([leader for leader in [other.election(name).leader()] if leader])

    def work_twice(lead: leasehold.Lease) -> str:
        if terms:
            skip_none()
        return work(lead)

    assert election.lead("a:80", work_twice, cancel=cancel) == "done"
    assert len(terms) == 2 and terms[0] < terms[1]
    cancel.cancel()
    with pytest.raises(leasehold.Cancelled):
        election.lead("a:80", work, cancel=cancel)


def test_operators_list(client: leasehold.Client, name: str) -> None:
    with client.lease(f"{name}-b"), client.lease(f"{name}-a"):
        assert [resource.name for resource in client.list(name)] == [f"{name}-a", f"{name}-b"]
        ends_at = time.monotonic() + 30
        while client.overview(name).matched < 2 and time.monotonic() < ends_at:
            time.sleep(0.1)
        assert client.overview(name, sort="name").items[0].holder_count == 1
    assert client.info()["store"]["backend"] == "sqlite"
    with pytest.raises(leasehold.Denied):
        client.order("evict", name, any=True, why="the test")


def in_child(client: leasehold.Client, lease: leasehold.Lease, name: str, pipe: Connection) -> None:
    try:
        lease.check()
        pipe.send("held")
    except leasehold.Lost as error:
        pipe.send(error.why)
    lease.release()
    pipe.send(lease.lost.is_set())
    with client.lease(f"{name}-child", ttl=5) as own:
        time.sleep(6)
        own.check()
        pipe.send(own.token)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own_leases(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    context = multiprocessing.get_context("fork")
    stop = threading.Event()
    # Other threads are busy in the client while it forks.
    noise = threading.Thread(target=lambda: [client.info() for _ in iter(stop.is_set, True)], daemon=True)
    noise.start()
    try:
        with client.lease(name, ttl=5) as lease:
            children: List[Any] = []
            for number in range(3):
                ours, theirs = context.Pipe()
                child = context.Process(target=in_child, args=(client, lease, f"{name}-{number}", theirs))
                child.start()
                children.append((ours, child))
            for ours, child in children:
                answers: List[Any] = []
                for _ in range(3):
                    assert ours.poll(30), "the child hangs"
                    answers.append(ours.recv())
                child.join(30)
                assert answers[:2] == ["forked", True] and answers[2] > 0 and child.exitcode == 0
            lease.check()
            assert other.resource(name).holders[0].token == lease.token
    finally:
        stop.set()
        noise.join()


def test_an_interrupt_leaves_nothing_behind(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    # A shell starts background commands with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with other.lease(name):
            main = threading.get_ident()
            threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                client.lease(name, wait=60).acquire()
            await_queue(other, name, 0)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lease_is_renewed_past_its_ttl(client: leasehold.Client, name: str) -> None:
    with client.lease(name, ttl=5) as lease:
        assert not lease.lost.wait(6)
        lease.check()


def await_renewal(lease: leasehold.Lease) -> None:
    before, ends_at = lease._times.stop_at, time.monotonic() + 30
    while lease._times.stop_at <= before:
        lease.check()
        assert time.monotonic() < ends_at, "it is not renewed"
        time.sleep(0.02)


def test_an_exception_of_a_callback_ends_no_renewals(client: leasehold.Client, name: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    ended = client.lease(f"{name}-ended").acquire()
    told = threading.Event()
    ended._listen(fail)
    ended._listen(told.set)
    with client.lease(name, ttl=5) as lease:
        ended._times = ended._times._replace(stop_at=0.0)
        assert ended.lost.wait(30) and told.wait(30)
        await_renewal(lease)
    ended.release()


@contextmanager
def no_threads() -> Generator[None, None, None]:
    """No thread of the client can be started in the block, and none is running."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("leasehold"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_process, "_process", None)
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_leases_are_renewed_after_a_thread_could_not_be_started(
    client: leasehold.Client, other: leasehold.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_threads():
        process = _process.current()
        with pytest.raises(leasehold.Unavailable):
            client.lease(name, ttl=1).acquire()
        assert not process.leases
    await_free(other, name)
    monkeypatch.setattr(_process, "_process", process)
    with client.lease(name, ttl=5) as lease:
        await_renewal(lease)
        # A renewal that finds no thread is tried again.
        with monkeypatch.context() as patch:
            patch.setattr(process, "workers", _process.Workers())
            patch.setattr(_process.Workers, "submit", lambda _workers, _work: False)  # pyright: ignore
            lease._times = lease._times._replace(renew_at=0.0)
            process.poke(0.0)
            time.sleep(0.5)
        await_renewal(lease)


def test_what_happens_while_the_watch_looks_is_not_missed() -> None:
    class Ended(Exception):
        pass

    class Wake:
        def notify(self) -> None:
            pass

        def wait(self, timeout: Any = None) -> None:
            pauses.append(timeout)
            raise Ended

    pauses: List[float] = []
    process = _process.Process()

    def look() -> float:
        process.poke(_clock.now() + 1)
        process.poke(_clock.now() + 2)
        return _clock.now() + 100

    patched: Any = process
    patched._look, patched._wake, patched.leases = look, Wake(), {1: None}
    with pytest.raises(Ended):
        process._watch()
    assert pauses[0] <= 1


def test_an_evicted_lease_does_not_wake_the_watch_before_its_end(client: leasehold.Client, name: str) -> None:
    with client.lease(name) as lease:
        lease.evicting = True
        lease._times = lease._times._replace(renew_at=0.0)
        assert lease._next_event(_clock.now()) == lease._times.stop_at


def test_a_token_is_cancelled_from_a_signal_handler() -> None:
    """The handler runs in the main thread, wherever that is in the code of the token."""
    token = leasehold.CancelToken()
    called: List[int] = []

    class Interrupted(List[Any]):
        def append(self, value: Any) -> None:
            super().append(value)
            token.cancel()

    patched: Any = token
    patched._callbacks = Interrupted()
    adding = threading.Thread(target=lambda: token._add(lambda: called.append(1)), daemon=True)
    adding.start()
    adding.join(30)
    assert called and token.is_cancelled
    with pytest.raises(leasehold.Cancelled):
        token.sleep(60)
    with pytest.raises(leasehold.Cancelled):  # once more: it stays cancelled
        token.sleep(60)


def test_several_end_when_one_is_lost_while_others_are_waited_for(
    client: leasehold.Client, other: leasehold.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired: List[leasehold.Lease] = []
    watch = _process.Process.watch

    def remember(process: _process.Process, lease: leasehold.Lease) -> None:
        watch(process, lease)
        acquired.append(lease)

    with other.lease(f"{name}-b"):
        monkeypatch.setattr(_process.Process, "watch", remember)

        def lose() -> None:
            await_queue(other, f"{name}-b", 1)
            acquired[0]._mark_lost("evicted")

        losing = threading.Thread(target=lose)
        losing.start()
        with pytest.raises(leasehold.Lost) as caught:
            client.all(client.lease(f"{name}-a"), client.lease(f"{name}-b"), wait=60).acquire()
        losing.join()
        assert caught.value.why == "evicted"
        await_queue(other, f"{name}-b", 0)
        with pytest.raises(leasehold.TimedOut):
            client.all(client.lease(f"{name}-a"), client.lease(f"{name}-b"), wait=0.2).acquire()
        cancel = leasehold.CancelToken()
        threading.Timer(0.2, cancel.cancel).start()
        with pytest.raises(leasehold.Cancelled):
            client.all(client.lease(f"{name}-a"), client.lease(f"{name}-b"), wait=60).acquire(cancel=cancel)
    await_free(other, f"{name}-a")


def test_only_functions_that_work_when_they_are_called_are_decorated(client: leasehold.Client, name: str) -> None:
    ran: List[str] = []

    def generator() -> Iterator[int]:
        ran.append("generator")
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        ran.append("async generator")
        yield 1

    async def coroutine() -> None:
        ran.append("coroutine")

    functions: List[Callable[[], Any]] = [generator, async_generator]
    for function in functions:
        with pytest.raises(leasehold.Invalid, match="generator"):
            client.locked(name)(function)
    functions = [lambda: generator(), lambda: coroutine(), lambda: async_generator()]
    for function in functions:
        with pytest.raises(leasehold.Invalid, match="after the lease is released"):
            client.locked(name)(function)()
    assert not ran


def test_a_leader_that_gave_up_its_lead_is_not_elected_again(client: leasehold.Client, name: str) -> None:
    def work(lead: leasehold.Lease) -> None:
        lead.release()
        lead.check()

    with pytest.raises(leasehold.Lost) as caught:
        client.election(name).lead("a:80", work)
    assert caught.value.why == "released"


def test_notes_and_labels_are_for_every_kind_of_lease(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    election = client.election(f"{name}-lead")
    requests = [
        client.read(f"{name}-read", note="step 1", label="nightly"),
        client.write(f"{name}-write", note="step 1", label="nightly"),
        client.semaphore(f"{name}-part", capacity=2, note="step 1", label="nightly"),
        election.candidate("step 1", label="nightly"),
    ]
    for request in requests:
        with request:
            holder = other.resource(request.resource).holders[0]
            assert (holder.note, holder.label) == (b"step 1", "nightly")
    assert election.lead("step 1", lambda lead: other.resource(lead.resource).holders[0].label, label="daily") == "daily"
    told = threading.Event()
    lead = election.candidate("step 1", on_lost=lambda _lead: told.set()).acquire()
    lead._mark_lost("evicted")
    assert told.wait(30)
    lead.release()


def test_a_store_that_guarantees_less_is_refused(server: Server, name: str) -> None:
    with leasehold.Client(server.url, level="best-effort").lease(name):
        pass
    with pytest.raises(leasehold.Invalid) as caught:
        leasehold.Client(server.url, level="consensus").lease(name).acquire()
    assert caught.value.kind == "guarantee_too_weak" and caught.value.effect == "none"


def test_a_resource_with_a_hashed_id_has_only_its_key(
    client: leasehold.Client, operated: Operated, name: str
) -> None:
    key = leasehold.Key("account/~0123456789abcdef0123456789abcdef")
    worker, operator = operated
    with worker.lease(key, note="step 1") as lease:
        assert lease.resource == lease.key == key.key and lease.pass_.endswith(key.key)
        lease.set_note("step 2")
        found = [resource for resource in operator.list("account/") if resource.key == key.key]
        assert operator.resource(leasehold.Key(found[0].key)).holders[0].note == b"step 2"
        assert operator.resource("account/~0123456789abcdef0123456789abcdef").holders == (), "as text it is another resource"
        operator.order("evict-now", leasehold.Key(found[0].key), token=lease.token, why="the test")
        with pytest.raises(leasehold.Lost):
            lease.set_note("step 3")
    leader = worker.election(key)
    with leader.candidate("a:80"):
        seen = leader.leader()
        assert seen is not None and seen.value == "a:80"


def test_an_operator_asks_a_holder_to_finish(operated: Operated, name: str) -> None:
    worker, operator = operated
    with worker.lease(name, ttl=6) as lease:
        assert lease.asked is None
        operator.order("ask", name, token=lease.token, within=60, why="the machine is needed")
        ends_at = time.monotonic() + 30
        while lease.asked is None:
            lease.check()
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        asked = lease.asked
        assert asked.why == "the machine is needed" and asked.by == "ops" and 0 < asked.within <= 60
        lease.check()
        with pytest.raises(leasehold.HolderChanged):
            operator.order("evict", name, token=lease.token + 1, why="it is another grant")
        operator.order("evict", name, token=lease.token, why="it did not finish")
        assert lease.lost.wait(30) and lease.evicting and lease.loss().why == "evicted"


def leases_in_child(leases: leasehold.LeaseSet, pipe: Connection) -> None:
    pipe.send((leases.lost.is_set(), leases.is_held))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_set_is_lost_in_a_forked_child(client: leasehold.Client, name: str) -> None:
    context = multiprocessing.get_context("fork")
    with client.all(client.lease(f"{name}-1"), client.lease(f"{name}-2")) as leases:
        ours, theirs = context.Pipe()
        child = context.Process(target=leases_in_child, args=(leases, theirs))
        child.start()
        assert ours.poll(30) and ours.recv() == (True, False)
        child.join(30)
        assert child.exitcode == 0
        leases.check()
        assert not leases.lost.is_set()
