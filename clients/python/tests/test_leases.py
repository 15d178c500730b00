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
from multiprocessing.connection import Connection
from typing import Any, List

import leasehold
import pytest
from conftest import Server
from leasehold import _process


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
        leases[f"{name}-a"].end("evicted")
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
    lease.end("not_there")
    lease.end("evicted")
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

    now = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    lease.was_renewed(Sent(now, time.time()), Kept(ttl=2, remaining=1, asked=None, evicting=True))
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
            lead.end("not_there")
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
    with client.lease(f"{name}-child", ttl=1) as own:
        time.sleep(2)
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
        with client.lease(name, ttl=2) as lease:
            for _ in range(3):
                ours, theirs = context.Pipe()
                child = context.Process(target=in_child, args=(client, lease, name, theirs))
                child.start()
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


def test_a_short_ttl_is_renewed_often(client: leasehold.Client, name: str) -> None:
    with client.lease(name, ttl=1) as lease:
        assert not lease.lost.wait(3)
        lease.check()
