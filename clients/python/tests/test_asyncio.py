"""Leases of asyncio, on a real server."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Callable, Coroutine, List

import leasehold
import pytest
from test_leases import await_free, await_queue, no_threads

Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    """Runs a coroutine function as a test."""

    def run(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
        asyncio.run(asyncio.wait_for(test(client, other, name), 60))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@in_loop
async def test_async_with_holds_and_releases(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    async with client.lease(name) as lease:
        lease.check()
        with pytest.raises(leasehold.Busy):
            await other.try_lease(name).acquire_async()
        await lease.set_note_async("step 2")
        assert other.resource(name).holders[0].note == b"step 2"
    assert other.resource(name).holders == ()


@in_loop
async def test_a_loss_cancels_the_body(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    was_cancelled = False
    with pytest.raises(leasehold.Lost) as caught:
        async with client.lease(name) as lease:
            asyncio.get_running_loop().call_later(0.1, lease._mark_lost, "evicted")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                was_cancelled = True
                raise
    assert was_cancelled and caught.value.why == "evicted"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    # The task goes on as if nothing had happened.
    await asyncio.sleep(0.01)
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0


@in_loop
async def test_an_error_of_the_body_is_not_hidden_by_a_loss(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.lease(name) as lease:
            asyncio.get_running_loop().call_soon(lease._mark_lost, "evicted")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
    await asyncio.sleep(0.01)


@in_loop
async def test_a_body_that_swallows_the_cancellation_ends_as_it_is(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    async with client.lease(name) as lease:
        asyncio.get_running_loop().call_soon(lease._mark_lost, "evicted")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        with pytest.raises(leasehold.Lost):
            lease.check()
    await asyncio.sleep(0.01)


@in_loop
async def test_a_cancelled_body_stays_cancelled(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with client.lease(name):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(await_free, other, name)


@in_loop
async def test_it_works_within_a_timeout(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with client.lease(name):
            entered.set()
            await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await entered.wait()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(working, 0.1)
    await asyncio.to_thread(await_free, other, name)


@in_loop
async def test_a_cancelled_wait_leaves_nothing(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    async with other.lease(name):
        waiting = asyncio.create_task(client.lease(name, wait=None).acquire_async())
        await asyncio.to_thread(await_queue, other, name, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(await_queue, other, name, 0)
    async with other.lease(name, wait=0):
        pass


@in_loop
async def test_cancelled_at_any_moment_nothing_is_left(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    """A task that is cancelled before, while or after it is granted."""
    for step in range(40):
        task = asyncio.create_task(client.lease(name).acquire_async())
        await asyncio.sleep(step * 0.0005)
        if task.done():
            (await task).release()
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with other.lease(name, wait=10):
        pass


@in_loop
async def test_hundreds_wait_at_once_and_the_executor_is_free(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    async with other.lease(name):
        waiting: "List[asyncio.Task[leasehold.Lease]]" = []
        for _ in range(100):
            waiting.append(asyncio.create_task(client.lease(name, wait=None).acquire_async()))
        await asyncio.to_thread(await_queue, other, name, 100)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.to_thread(await_queue, other, name, 0)


@in_loop
async def test_coroutines_are_decorated(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    @client.locked(name, wait=0)
    async def work() -> int:
        leasehold.current_lease().check()
        with pytest.raises(leasehold.Busy):
            await other.lease(name, wait=0).acquire_async()
        return 7

    assert await work() == 7 and asyncio.iscoroutinefunction(work)


@in_loop
async def test_several_and_their_loss(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    names = [f"{name}-2", f"{name}-1"]
    with pytest.raises(leasehold.Lost):
        async with client.all(*(client.lease(each) for each in names)) as leases:
            asyncio.get_running_loop().call_soon(leases.leases[1]._mark_lost, "evicted")
            await asyncio.sleep(60)
    for each in names:
        await asyncio.to_thread(await_free, other, each)


@in_loop
async def test_all_leases_of_a_set_may_be_lost_at_once(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    """As when the client is cut off: one look at the clocks ends all of them."""
    names = [f"{name}-1", f"{name}-2"]
    with pytest.raises(leasehold.Lost):
        async with client.all(*(client.lease(each) for each in names)) as leases:
            loop = asyncio.get_running_loop()
            for lease in leases:
                loop.call_soon(lease._mark_lost, "expired")
            await asyncio.sleep(60)
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0.01)


@in_loop
async def test_the_loss_of_a_set_is_told_once(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    told: "asyncio.Queue[leasehold.LeaseSet]" = asyncio.Queue()
    loop = asyncio.get_running_loop()
    leases = await client.all(client.lease(f"{name}-1"), client.lease(f"{name}-2")).acquire_async()
    leases.on_lost(lambda lost: loop.call_soon_threadsafe(told.put_nowait, lost))
    waiting = asyncio.create_task(leases.wait_lost())
    for lease in leases:
        lease._mark_lost("evicted")
    await waiting
    assert await told.get() is leases and leases.loss().why == "evicted"
    await asyncio.sleep(0.1)
    assert told.empty()
    await leases.release_async()


@in_loop
async def test_a_claim_that_finds_no_thread_blocks_no_loop(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    with no_threads():
        with pytest.raises(leasehold.Unavailable) as caught:
            await client.lease(name, wait=None).acquire_async()
    assert caught.value.effect == "none"
    async with client.lease(name):
        pass


@in_loop
async def test_leading_begins_anew_after_a_loss(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    terms: List[int] = []

    async def work(lead: leasehold.Lease) -> str:
        terms.append(lead.token)
        if len(terms) == 1:
            asyncio.get_running_loop().call_soon(lead._mark_lost, "evicted")
            await asyncio.sleep(60)
        async for leader in other.election(name).observe():
            assert leader is not None and leader.token == lead.token
            break
        return "done"

    assert await client.election(name).lead_async("a:80", work) == "done"
    assert len(terms) == 2 and terms[0] < terms[1]


@in_loop
async def test_a_leader_that_gave_up_its_lead_is_not_elected_again(
    client: leasehold.Client, other: leasehold.Client, name: str
) -> None:
    async def work(lead: leasehold.Lease) -> None:
        await lead.release_async()
        lead.check()

    with pytest.raises(leasehold.Lost) as caught:
        await client.election(name).lead_async("a:80", work)
    assert caught.value.why == "released"


@in_loop
async def test_observing_is_cancelled_by_its_token(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    cancel = leasehold.CancelToken()
    leaders = client.election(name).observe(cancel=cancel).__aiter__()
    assert await leaders.__anext__() is None
    asyncio.get_running_loop().call_later(0.2, cancel.cancel)
    with pytest.raises(leasehold.Cancelled):
        await leaders.__anext__()


@in_loop
async def test_a_loss_can_be_waited_for(client: leasehold.Client, other: leasehold.Client, name: str) -> None:
    lease = await client.lease(name).acquire_async()
    lost = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(0.05)
    assert not lost.done()
    lease._mark_lost("evicted")
    await lost
    await lease.wait_lost()
    await lease.release_async()
