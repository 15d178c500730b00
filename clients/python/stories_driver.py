"""Drives the Python client for the stories that every client is told: see crates/stories/README.md.

``stories_driver.py`` uses threads, ``stories_driver.py --asyncio`` uses asyncio.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Union

sys.path.insert(0, str(Path(__file__).parent / "src"))

import leasehold  # noqa: E402

Json = Dict[str, Any]
Held = Union[leasehold.Lease, leasehold.LeaseSet]

_output = threading.Lock()


def say(line: Json) -> None:
    """Writes one line."""
    with _output:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Boom(Exception):
    """The error of a body."""


def error_of(error: BaseException) -> Json:
    """An error as the protocol writes it."""
    told: Json = {"message": str(error)}
    if isinstance(error, leasehold.Busy):
        told["kind"] = "timed_out" if isinstance(error, leasehold.TimedOut) else "busy"
        told["retry_after_ms"] = round(error.retry_after * 1000)
        told["holders"] = [
            {"host": holder.host, "pid": holder.pid, "label": holder.label, "token": str(holder.token)}
            for holder in error.holders
        ]
    elif isinstance(error, leasehold.Lost):
        told.update(kind="lost", why=error.why)
    elif isinstance(error, leasehold.Unavailable):
        told.update(kind="unavailable", effect=error.effect)
    elif isinstance(error, leasehold.Denied):
        told["kind"] = "denied"
    elif isinstance(error, leasehold.Invalid):
        told["kind"] = "invalid"
    elif isinstance(error, (leasehold.Cancelled, asyncio.CancelledError)):
        told["kind"] = "cancelled"
    elif isinstance(error, Boom):
        told["kind"] = "body"
    else:
        told.update(kind="unexpected", message=repr(error))
    return told


def grant_of(lease: leasehold.Lease) -> Json:
    """A grant as the protocol writes it."""
    if lease.is_shared:
        return {"number": str(lease.number)}
    return {"token": str(lease.token), "pass": lease.pass_}


class Driver:
    """What both drivers share."""

    def __init__(self) -> None:
        self.clients: Dict[str, leasehold.Client] = {}
        self.held: Dict[str, Held] = {}
        self.finish: Dict[str, threading.Event] = {}

    def connect(self, do: Json) -> Json:
        self.clients[do["client"]] = leasehold.Client(do["url"], token=do.get("token"))
        return {}

    def request(self, do: Json) -> leasehold.LeaseRequest:
        """The request of an ``acquire`` or a ``scope``."""
        client = self.clients[do["client"]]
        share: Any = do.get("share")
        options: Json = {"ttl": do["ttl_ms"] / 1000, "wait": do["wait_ms"] / 1000, "note": do.get("note"), "label": do.get("label")}
        if share in ("read", "write"):
            return (client.read if share == "read" else client.write)(do["resource"], **options)
        if share is not None:
            return client.semaphore(do["resource"], capacity=share["capacity"], weight=share["weight"], **options)
        return client.lease(do["resource"], **options)

    def requests(self, do: Json) -> leasehold.SeveralRequest:
        """The request of an ``acquire_all``."""
        client = self.clients[do["client"]]
        requests = [client.lease(resource, ttl=do["ttl_ms"] / 1000) for resource in do["resources"]]
        return client.all(*requests, wait=do["wait_ms"] / 1000)

    def grants(self, leases: leasehold.LeaseSet) -> Json:
        return {"leases": [{"resource": lease.resource, **grant_of(lease)} for lease in leases]}

    def check(self, do: Json) -> Json:
        self.held[do["lease"]].check()
        return {}

    def names(self, do: Json) -> Json:
        return {"names": [resource.name for resource in self.clients[do["client"]].list(do["prefix"])]}

    def overview(self, do: Json) -> Json:
        overview = self.clients[do["client"]].overview()
        return {"held": overview.held, "waiting": overview.waiting}

    def order(self, do: Json) -> Json:
        token, lasting = do.get("token"), do.get("lasting_ms")
        self.clients[do["client"]].order(
            do["action"],
            do["resource"],
            why=do["why"],
            token=None if token is None else int(token),
            any=do.get("any", False),
            lasting=None if lasting is None else lasting / 1000,
        )
        return {}

    def let_finish(self, do: Json) -> Json:
        self.finish.setdefault(do["lease"], threading.Event()).set()
        return {}

    def fork(self, do: Json) -> Json:
        lease = self.held[do["lease"]]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with lease:
                    try:
                        lease.check()
                        told: Json = {"ok": {}}
                    except BaseException as error:
                        told = {"error": error_of(error)}
                lease.release()
            except BaseException as error:
                told = {"error": error_of(error)}
            os.write(write, json.dumps(told).encode())
            # What sys.exit() does at its end. It would only end this thread, or be the error of a task.
            atexit._run_exitfuncs()
            os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            told = json.loads(pipe.read())
        os.waitpid(child, 0)
        return {"child": told}


class ThreadDriver(Driver):
    """Each command has a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cancels: Dict[int, leasehold.CancelToken] = {}

    def run(self) -> None:
        say({"hello": "python", "cannot": {"block": "there is no event loop"}})
        for text in sys.stdin:
            do = json.loads(text)
            self.cancels[do["id"]] = leasehold.CancelToken()
            threading.Thread(target=self.answer, args=(do,), daemon=True).start()
        os._exit(0)

    def answer(self, do: Json) -> None:
        commands: Dict[str, Callable[[Json], Json]] = {
            "connect": self.connect,
            "acquire": self.acquire,
            "acquire_all": self.acquire_all,
            "cancel": self.cancel,
            "check": self.check,
            "note": self.note,
            "release": self.release,
            "scope": self.scope,
            "finish": self.let_finish,
            "observe": self.observe,
            "names": self.names,
            "overview": self.overview,
            "order": self.order,
            "fork": self.fork,
        }
        try:
            say({"id": do["id"], "ok": commands[do["do"]](do)})
        except BaseException as error:
            say({"id": do["id"], "error": error_of(error)})

    def acquire(self, do: Json) -> Json:
        lease = self.request(do).acquire(cancel=self.cancels[do["id"]])
        self.keep(do["lease"], lease)
        return grant_of(lease)

    def keep(self, name: str, lease: Held) -> None:
        self.held[name] = lease

        def tell(lost: Held) -> None:
            say({"event": "lost", "lease": name, "why": lost.loss().why})

        lease.on_lost(tell)

    def acquire_all(self, do: Json) -> Json:
        leases = self.requests(do).acquire(cancel=self.cancels[do["id"]])
        self.keep(do["lease"], leases)
        return self.grants(leases)

    def cancel(self, do: Json) -> Json:
        self.cancels[do["of"]].cancel()
        return {}

    def note(self, do: Json) -> Json:
        lease = self.held[do["lease"]]
        assert isinstance(lease, leasehold.Lease)
        lease.set_note(do["note"])
        return {}

    def release(self, do: Json) -> Json:
        self.held[do["lease"]].release()
        return {}

    def scope(self, do: Json) -> Json:
        name, body = do["lease"], do["body"]
        finish = self.finish.setdefault(name, threading.Event())
        with self.request(do) as lease:
            self.keep(name, lease)
            say({"event": "entered", "lease": name, **grant_of(lease)})
            try:
                while body.startswith("work") and not finish.wait(0.02):
                    lease.check()
            except leasehold.Lost:
                say({"event": "stopped", "lease": name})
                raise
            if body != "return":
                raise Boom("the body failed")
        return {}

    def observe(self, do: Json) -> Json:
        leaders = self.clients[do["client"]].election(do["resource"]).observe()

        def follow() -> None:
            for leader in leaders:
                say_leader(do["observer"], leader)

        threading.Thread(target=follow, daemon=True).start()
        return {}


def say_leader(observer: str, leader: Optional[leasehold.Leader]) -> None:
    token = None if leader is None else str(leader.token)
    say({"event": "leader", "observer": observer, "token": token, "value": leader and leader.value})


class LoopDriver(Driver):
    """Each command is a task of one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: Dict[int, asyncio.Task[None]] = {}
        self.others: List[asyncio.Task[None]] = []

    async def run(self) -> None:
        say({"hello": "python-asyncio", "cannot": {}})
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()

        def read() -> None:
            for text in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, text)
            os._exit(0)

        threading.Thread(target=read, daemon=True).start()
        while True:
            do = json.loads(await lines.get())
            self.tasks[do["id"]] = asyncio.create_task(self.answer(do))

    async def answer(self, do: Json) -> None:
        plain: Dict[str, Callable[[Json], Json]] = {
            "connect": self.connect,
            "cancel": self.cancel,
            "check": self.check,
            "finish": self.let_finish,
            "observe": self.observe,
            "fork": self.fork,
            "block": self.block,
        }
        blocking: Dict[str, Callable[[Json], Json]] = {
            "names": self.names,
            "overview": self.overview,
            "order": self.order,
        }
        commands = {
            "acquire": self.acquire,
            "acquire_all": self.acquire_all,
            "note": self.note,
            "release": self.release,
            "scope": self.scope,
        }
        name = do["do"]
        try:
            if name in plain:
                told = plain[name](do)
            elif name in blocking:
                told = await asyncio.to_thread(blocking[name], do)
            else:
                told = await commands[name](do)
            say({"id": do["id"], "ok": told})
        except BaseException as error:
            say({"id": do["id"], "error": error_of(error)})

    async def acquire(self, do: Json) -> Json:
        lease = await self.request(do).acquire_async()
        self.keep(do["lease"], lease)
        return grant_of(lease)

    def keep(self, name: str, lease: Held) -> None:
        self.held[name] = lease

        async def tell() -> None:
            await lease.wait_lost()
            say({"event": "lost", "lease": name, "why": lease.loss().why})

        self.others.append(asyncio.create_task(tell()))

    async def acquire_all(self, do: Json) -> Json:
        leases = await self.requests(do).acquire_async()
        self.keep(do["lease"], leases)
        return self.grants(leases)

    def cancel(self, do: Json) -> Json:
        self.tasks[do["of"]].cancel()
        return {}

    async def note(self, do: Json) -> Json:
        lease = self.held[do["lease"]]
        assert isinstance(lease, leasehold.Lease)
        await lease.set_note_async(do["note"])
        return {}

    async def release(self, do: Json) -> Json:
        await self.held[do["lease"]].release_async()
        return {}

    async def scope(self, do: Json) -> Json:
        name, body = do["lease"], do["body"]
        finish = self.finish.setdefault(name, threading.Event())
        async with self.request(do) as lease:
            self.keep(name, lease)
            say({"event": "entered", "lease": name, **grant_of(lease)})
            try:
                while body.startswith("work") and not finish.is_set():
                    await asyncio.sleep(0.02 if body == "work_then_raise" else 3600)
            except asyncio.CancelledError:
                say({"event": "stopped", "lease": name})
                raise
            if body != "return":
                raise Boom("the body failed")
        return {}

    def observe(self, do: Json) -> Json:
        leaders = self.clients[do["client"]].election(do["resource"]).observe()

        async def follow() -> None:
            async for leader in leaders:
                say_leader(do["observer"], leader)

        self.others.append(asyncio.create_task(follow()))
        return {}

    def block(self, do: Json) -> Json:
        time.sleep(do["for_ms"] / 1000)
        return self.check(do)


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(LoopDriver().run())
    else:
        ThreadDriver().run()
