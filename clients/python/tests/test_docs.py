"""The code in the documentation does what it says."""

# The libraries of the recipes have no types, or other ones.
# mypy: disable-error-code="import-untyped"
# pyright: basic

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Tuple

import leasehold
import pytest
from conftest import Server, program
from test_leases import await_free

FOLDER = Path(__file__).resolve().parents[1]


def blocks(file: str, server: Optional[Server], heading: str = "") -> List[str]:
    """The Python blocks below a heading, for this server."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    return [code.replace("http://127.0.0.1:7420", server.url) if server else code for code in found]


def run(code: str, names: Dict[str, Any]) -> None:
    exec(compile(code, "documentation", "exec"), names)


@pytest.fixture
def leases(server: Server, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``leases`` of the recipes."""
    module = ModuleType("leases")
    before_the_first_heading = (FOLDER / "docs/recipes.md").read_text(encoding="utf-8").split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", before_the_first_heading, re.DOTALL)
    run(code.replace("http://127.0.0.1:7420", server.url), module.__dict__)
    monkeypatch.setitem(sys.modules, "leases", module)
    return module


def test_the_readme(own_server: Server) -> None:
    exported: List[Any] = []

    async def export_all(token: int) -> None:
        exported.append(token)

    def transfer(one: int, two: int) -> None:
        exported.append((one, two))

    def export(part: str, token: int) -> None:
        exported.append((part, token))

    names: Dict[str, Any] = {"parts": ["a", "b"], "export": export, "export_all": export_all, "transfer": transfer}
    for code in blocks("README.md", own_server):
        run(code, names)
    names["cleanup"]()
    names["export_report"](7)
    asyncio.run(names["nightly"]())
    assert [part for part, _ in exported[:4]] == ["a", "b", "a", "b"] and len(exported) == 6


def test_a_holder_that_is_asked_finishes(operated: Tuple[leasehold.Client, leasehold.Client]) -> None:
    worker, operator = operated
    exported: List[str] = []

    def export(part: str, token: int) -> None:
        if not exported:
            operator.order("ask", "report/42", token=token, within=60, why="the machine is needed")
        exported.append(part)
        time.sleep(0.05)

    class Short:
        """A client whose leases are renewed often."""

        def lease(self, resource: str) -> leasehold.LeaseRequest:
            return worker.lease(resource, ttl=6)

    (code,) = [code for code in blocks("README.md", None) if "lease.asked" in code]
    run(code, {"client": Short(), "parts": (str(number) for number in itertools.count()), "export": export})
    assert 0 < len(exported)


def test_celery(server: Server, leases: ModuleType, other: leasehold.Client) -> None:
    made: List[Any] = []

    def make_invoice(account: int, lease: leasehold.Lease) -> str:
        lease.check()
        made.append((account, lease.token))
        return "made"

    names: Dict[str, Any] = {"make_invoice": make_invoice}
    for code in blocks("docs/recipes.md", server, "Celery"):
        run(code, names)
    names["app"].conf.task_always_eager = True
    names["app"].conf.task_eager_propagates = True
    invoice: Any = names["invoice"]
    assert invoice.delay(7).get() == "made" and made[0][0] == 7
    from celery.exceptions import Retry

    with other.lease("account/8", label="another worker"):
        with pytest.raises(Retry) as caught:
            invoice.delay(8)
        assert isinstance(caught.value.exc, leasehold.Busy) and "Retry in" in str(caught.value)
    assert len(made) == 1


def test_apscheduler(server: Server, leases: ModuleType, other: leasehold.Client) -> None:
    from apscheduler.schedulers.background import BackgroundScheduler

    class Watched(BackgroundScheduler):  # type: ignore[misc]
        """Tells when it was started, and runs the jobs at once."""

        started = threading.Event()

        def start(self, *args: Any, **options: Any) -> None:
            super().start(*args, **options)
            for job in self.get_jobs():
                job.func()
            self.started.set()

    cleaned: List[int] = []
    stop = threading.Event()
    names: Dict[str, Any] = {"__name__": "recipe", "scheduler": Watched(), "stop": stop}
    names.update(cleanup=lambda: cleaned.append(1))
    first, second = blocks("docs/recipes.md", server, "APScheduler")
    run(first, names)

    def check() -> None:
        Watched.started.wait(30)
        leader = other.election("scheduler/billing").leader()
        assert leader is not None and leader.value == "host-a"
        stop.set()

    checking = threading.Thread(target=check)
    checking.start()
    run(second, names)
    checking.join()
    assert cleaned == [1]
    names["once"]("cleanup", names["cleanup"])()
    assert cleaned == [1], "the resource is kept closed after the job"


def test_django(
    server: Server, leases: ModuleType, other: leasehold.Client, operated: Tuple[leasehold.Client, leasehold.Client]
) -> None:
    from django.conf import settings
    from django.core.management.base import CommandError

    settings.configure(DEFAULT_CHARSET="utf-8")
    done: List[Any] = []
    names: Dict[str, Any] = {}
    names.update(close_month=done.append, charge=lambda order, token: done.append(order), __name__="recipe")
    for code in blocks("docs/recipes.md", server, "Django"):
        run(code, names)
    command: Any = names["Command"]()
    command.handle()
    assert len(done) == 1
    with other.lease("command/close-month"), pytest.raises(CommandError, match="elsewhere"):
        command.handle()
    assert names["pay"](None, 7).status_code == 200 and done[1] == 7
    await_free(other, "order/7")
    # A paused resource has no holder that could be named.
    names["client"], operator = operated
    operator.order("pause", "command/close-month", lasting=600, why="the books are being checked")
    with pytest.raises(CommandError, match="command/close-month"):
        command.handle()


@pytest.fixture(scope="session")
def database() -> str:
    """The URL of an empty PostgreSQL database: `leasehold-stories --postgres COMMAND` starts one for a command."""
    url = os.environ.get("LEASEHOLD_TEST_POSTGRES")
    assert url, "LEASEHOLD_TEST_POSTGRES is not set: run the tests with `leasehold-stories --postgres python -m pytest`"
    return url


def test_a_stale_holder_is_refused_by_the_database(server: Server, other: leasehold.Client, database: str) -> None:
    import psycopg

    schema = subprocess.run([str(program()), "fence", "schema"], check=True, capture_output=True, text=True).stdout
    with psycopg.connect(database) as connection:
        connection.execute(schema.encode())
        connection.execute("CREATE TABLE report (id BIGINT PRIMARY KEY, body TEXT)")
        connection.execute("CREATE TABLE job (id BIGINT PRIMARY KEY, state TEXT, last_token BIGINT NOT NULL DEFAULT 0)")
        connection.execute("INSERT INTO report VALUES (42, 'old'); INSERT INTO job VALUES (7, 'new')")
    stale = {name: other.lease(name).acquire() for name in ("report/42", "job/7")}
    for lease in stale.values():
        lease.release()  # as after a ttl: the process was stopped, and does not know it
    names: Dict[str, Any] = {"client": leasehold.Client(server.url), "psycopg": psycopg, "dsn": database}
    for code in blocks("docs/fencing.md", server):
        run(code, names)

    def body() -> Any:
        with psycopg.connect(database) as connection:
            return connection.execute("SELECT body, (SELECT state FROM job) FROM report").fetchone()

    assert body() == ("new", "running")
    with pytest.raises(psycopg.Error) as caught, psycopg.connect(database) as connection:
        connection.execute("SELECT leasehold_fence.admit(%s)", [stale["report/42"].pass_])
        connection.execute("UPDATE report SET body = 'stale' WHERE id = 42")
    assert caught.value.sqlstate == "LH001" and type(caught.value) is psycopg.DatabaseError
    with pytest.raises(RuntimeError, match="stale"):
        run(blocks("docs/fencing.md", server)[1].replace("lease.token", str(stale["job/7"].token)), names)
    assert body() == ("new", "running")

    install = [str(program()), "fence", "install", "--database", database, "--table", "report", "--resource", "report/{id}"]
    subprocess.run(install, check=True, capture_output=True)
    with pytest.raises(psycopg.Error) as caught, psycopg.connect(database) as connection:
        connection.execute("UPDATE report SET body = 'without a pass' WHERE id = 42")
    assert caught.value.sqlstate == "LH003"
    with leasehold.Client(server.url).lease("report/42") as lease, psycopg.connect(database) as connection:
        connection.execute("SELECT leasehold_fence.enter(%s)", [lease.pass_])
        connection.execute("UPDATE report SET body = 'newer' WHERE id = 42")
    assert body() == ("newer", "running")
