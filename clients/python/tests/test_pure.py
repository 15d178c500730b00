"""What needs no server: names, times, and what answers mean."""

from __future__ import annotations

import json
import pickle
import traceback
from typing import Any, Type

import leasehold
import pytest
from leasehold import _protocol
from leasehold._acquire import timed_out
from leasehold._json import Doc
from leasehold._names import key_of, new_owner, owner_hash
from leasehold._protocol import Answer, Call, Claim, Granted, Kept, Queued, RenewedClaim
from leasehold._renewal import batches
from leasehold._times import Sent, renewal_timeout, times_of, tombstone

OWNER = "0123456789abcdef0123456789abcdef"


def test_keys_are_encoded_as_the_server_does() -> None:
    assert key_of("report/42") == "report/42"
    assert key_of("acme:report/42 of {x}") == "acme:report/42%20of%20%7Bx%7D"
    assert key_of("report/a/b") == "report/a%2Fb"
    assert key_of("report/ü") == "report/%C3%BC"
    assert key_of("report/a~b") == "report/a%7Eb"


def test_a_resource_can_be_named_by_its_key() -> None:
    hashed = leasehold.Key("acme:report/~0123456789abcdef0123456789abcdef")
    assert Claim(hashed, 30).fields()["key"] == Claim(hashed, 30).text == hashed.key
    plain = Claim(leasehold.Key("report/a%2Fb"), 30)
    assert (plain.key, plain.text) == ("report/a%2Fb", "report/a/b") and "resource" not in plain.fields()
    assert Claim("report/a/b", 30).fields()["resource"] == "report/a/b"


@pytest.mark.parametrize("name", ["report", "Report/1", "report/", "/1", "a:b:c/1", "a b/1", "r/\x07", "r/\x85", "r/" + "é" * 129])
def test_wrong_names_are_invalid(name: str) -> None:
    with pytest.raises(leasehold.Invalid):
        key_of(name)


def test_owners_are_random_and_their_hash_is_the_servers() -> None:
    assert owner_hash(OWNER) == "3eb1bd439947eb762998e566ccc2e099"
    assert len({new_owner() for _ in range(100)}) == 100
    assert OWNER not in repr(Claim("report/1", 30, {}, OWNER)), "it is a secret"


def test_times_count_from_the_send_and_from_what_remains() -> None:
    times = times_of(Sent(100.0, 5000.0), remaining=30, ttl=30)
    assert times.renew_at == 110
    assert times.deadline == pytest.approx(129.698)
    assert times.stop_at == pytest.approx(124.698)
    assert times.wall_stop_at == pytest.approx(5024.698)
    # What the server waited on our behalf does not count, less one per cent.
    late = times_of(Sent(100.0, 5000.0), remaining=30, ttl=30, waited=1000)
    assert late.deadline == pytest.approx(129.698 + 990)
    # Asked again 12 s after the grant: the rest is shorter, and a renewal is overdue.
    rest = times_of(Sent(112.0, 5012.0), remaining=18, ttl=30)
    assert rest.deadline == pytest.approx(times.deadline)
    assert rest.renew_at == 112
    # Shortened to 1 s with 29 s left: the margin is that of 29 s.
    assert times_of(Sent(0.0, 0.0), remaining=29, ttl=1).deadline == pytest.approx(28.708)
    assert times_of(Sent(0.0, 0.0), remaining=86400, ttl=86400).renew_at == 60
    assert times_of(Sent(0.0, 0.0), remaining=0, ttl=30).deadline <= 0


def test_no_time_moves_back() -> None:
    first = times_of(Sent(100.0, 5000.0), remaining=30, ttl=30)
    second = times_of(Sent(101.0, 4000.0), remaining=5, ttl=30)
    assert first.later_of(second)[1:] == first[1:]
    assert first.later_of(second).renew_at == second.renew_at


def test_the_calendar_time_follows_a_clock_that_was_set_back() -> None:
    """Otherwise it is an hour late, and does not end the lease of a machine that slept."""
    fast = times_of(Sent(100.0, 8600.0), remaining=30, ttl=30)
    right = times_of(Sent(110.0, 5010.0), remaining=30, ttl=30)
    assert fast.later_of(right).wall_stop_at == right.wall_stop_at == pytest.approx(5034.698)
    # An answer that extends nothing changes nothing.
    assert right.later_of(fast).wall_stop_at == right.wall_stop_at


def test_a_renewal_may_take_less_than_a_third_of_the_ttl() -> None:
    for ttl in (0.2, 1, 3, 30, 3600):
        assert renewal_timeout(ttl) <= max(0.05, ttl / 3)
    assert tombstone(1) == 180 and tombstone(1000) == 2000 and tombstone(1e9) == 172_800


def granted(**fields: Any) -> Answer:
    body = {
        "verdict": "granted",
        "resource": "report/1",
        "key": "report/1",
        "owner_hash": owner_hash(OWNER),
        "token": "17",
        "pass": f"17 {owner_hash(OWNER)} report/1",
        "ttl_ms": 30000,
        "remaining_ms": 29000,
        "waited_ms": 5,
        "new_field": [1],
        **fields,
    }
    return Answer(200, json.dumps(body).encode())


CLAIM = Claim("report/1", 30, {}, OWNER)


def test_a_grant_is_read() -> None:
    verdict = _protocol.read_acquire(granted(), CLAIM)
    assert verdict == Granted(30, 29, 0.005, 17, None, f"17 {owner_hash(OWNER)} report/1")


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "report/2"},
        {"owner_hash": owner_hash("f" * 32)},
        {"owner_hash": None},
        {"verdict": "given"},
        {"verdict": "kept"},
        {"remaining_ms": -1},
        {"remaining_ms": "29000"},
        {"remaining_ms": None},
        {"ttl_ms": True},
        {"token": "seventeen"},
        {"token": "18"},
        {"pass": f"17 {owner_hash(OWNER)} report/2"},
    ],
)
def test_an_answer_that_is_not_quite_a_grant_is_none(fields: Any) -> None:
    with pytest.raises(leasehold.Unavailable) as caught:
        _protocol.read_acquire(granted(**fields), CLAIM)
    assert caught.value.effect == "unknown"


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"verdict":"granted"}', b"<html>", b"\xff"])
@pytest.mark.parametrize("status", [200, 202, 204, 301, 423, 502])
def test_a_body_that_cannot_be_read_is_no_answer(body: bytes, status: int) -> None:
    with pytest.raises(leasehold.Unavailable) as caught:
        _protocol.read_acquire(Answer(status, body), CLAIM)
    assert caught.value.effect == "unknown"


def test_a_place_is_not_a_grant() -> None:
    place = {"verdict": "queued", "key": "report/1", "owner_hash": owner_hash(OWNER)}
    assert _protocol.read_acquire(Answer(202, json.dumps(place).encode()), CLAIM) == Queued()


NAMED = {"key": "report/1", "owner_hash": owner_hash(OWNER)}


def problem(kind: str, status: int, **fields: Any) -> Answer:
    return Answer(status, json.dumps({"kind": kind, "status": status, "title": "t", "effect": "none", **fields}).encode())


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("contended", leasehold.Busy),
        ("lost", leasehold.Lost),
        ("mismatch", leasehold.Mismatch),
        ("unauthenticated", leasehold.Denied),
        ("denied", leasehold.Denied),
        ("invalid", leasehold.Invalid),
        ("limit", leasehold.Invalid),
        ("wrong_host", leasehold.Invalid),
        ("not_that_one", leasehold.HolderChanged),
        ("corrupt", leasehold.Corrupt),
        ("unavailable", leasehold.Unavailable),
        ("draining", leasehold.Unavailable),
        ("throttled", leasehold.Unavailable),
        ("invented_later", leasehold.Unavailable),
    ],
)
def test_each_problem_is_a_type(kind: str, error: Type[leasehold.LeaseholdError]) -> None:
    with pytest.raises(error) as caught:
        _protocol.read_acquire(problem(kind, 400, **NAMED), CLAIM)
    assert type(caught.value) is error and caught.value.effect == "none"
    assert caught.value.kind == kind, "a limit is not the same as a wrong name"


@pytest.mark.parametrize("kind", ["contended", "lost"])
def test_a_verdict_that_names_no_claim_is_not_believed(kind: str) -> None:
    answer = problem(kind, 400)
    with pytest.raises(leasehold.Unavailable):
        _protocol.read_acquire(answer, CLAIM)
    assert answer.drop_connection


def test_the_lock_of_another_program_is_shown() -> None:
    lock = {"key": "report/1", "form": "redis-py lock", "value_hash": "00ff00ff00ff00ff", "remaining_ms": None}
    with pytest.raises(leasehold.Busy) as caught:
        _protocol.read_acquire(problem("contended", 423, foreign=lock, **NAMED), CLAIM)
    expected = leasehold.ForeignLock("report/1", "redis-py lock", "00ff00ff00ff00ff", None)
    assert caught.value.foreign == timed_out(1, caught.value).foreign == expected
    seen = {"resource": "report/1", "key": "report/1", "capacity": 1, "holder_count": 0, "queue_length": 0, "cursor": "c"}
    assert leasehold.Resource.read(Doc({**seen, "foreign": [lock]})).foreign == (expected,)


def test_messages_control_no_terminal() -> None:
    with pytest.raises(leasehold.Unavailable) as caught:
        _protocol.read_acquire(problem("unavailable", 503, detail="no\nanswer \x1b[2J"), CLAIM)
    assert str(caught.value) == "no answer  [2J"


def test_effects_are_unknown_unless_said() -> None:
    with pytest.raises(leasehold.Unavailable) as caught:
        _protocol.read_acquire(problem("unavailable", 503, effect="perhaps"), CLAIM)
    assert caught.value.effect == "unknown"
    with pytest.raises(leasehold.Unavailable):  # a refusal of another claim says nothing about ours
        _protocol.read_acquire(problem("lost", 410, key="report/2", owner_hash=owner_hash(OWNER)), CLAIM)


def test_renewals_are_read_one_by_one() -> None:
    claims = [RenewedClaim(Claim(f"report/{number}", 30, {}, OWNER), 7) for number in range(7)]
    named = [{"key": each.claim.key, "owner_hash": owner_hash(OWNER)} for each in claims]
    kept = {"status": 200, "verdict": "kept", "grant": "7", "ttl_ms": 30000, "remaining_ms": 30000, "asked": None, "evicting": False}
    entries = [
        {**kept, **named[0]},
        {"status": 410, "kind": "lost", "why": "evicted", "effect": "none", "verdict": "gone", **named[1]},
        {"status": 503, "kind": "unavailable", "effect": "unknown"},
        {**kept, **named[0]},
        {"status": 410, "kind": "lost", "why": "evicted", "effect": "none", "verdict": "gone", **named[0]},
        {**kept, **named[5], "grant": "9"},
        {"status": 202, "verdict": "queued", **named[6]},
    ]
    answer = Answer(200, json.dumps({"leases": entries}).encode())
    outcomes = _protocol.read_renewals(answer, claims)
    assert answer.drop_connection
    assert outcomes[0] == Kept(30, 30, None, False)
    assert isinstance(outcomes[1], leasehold.Lost) and outcomes[1].why == "evicted"
    assert [type(outcome) for outcome in outcomes[2:5]] == [leasehold.Unavailable] * 3, "what names another claim says nothing"
    for outcome in outcomes[5:]:  # others may have held it between
        assert isinstance(outcome, leasehold.Lost) and outcome.why == "not_there"
    with pytest.raises(leasehold.Unavailable):
        _protocol.read_renewals(Answer(200, json.dumps({"leases": entries[:2]}).encode()), claims)
    with pytest.raises(leasehold.Unavailable):  # a refusal of the whole list ends no lease
        _protocol.read_renewals(problem("lost", 410, why="evicted"), claims)


@pytest.mark.parametrize(
    "body",
    [
        b'{"resources":' * 100_000,
        b"[" * 100_000,
        b'{"verdict":"granted","ttl_ms":1' + b"0" * 4000 + b"}",
        b'{"verdict":"granted","token":"1' + b"0" * 5000 + b'"}',
    ],
)
def test_an_answer_that_is_too_large_to_read_is_unavailable(body: bytes) -> None:
    def read(doc: Doc) -> None:
        doc.seconds("ttl_ms")
        doc.opt_token("token")

    answer = Answer(200, body)
    with pytest.raises(leasehold.Unavailable):
        _protocol.read_reply(answer, read)
    assert answer.drop_connection


def test_errors_travel_between_processes() -> None:
    busy = leasehold.TimedOut("waited", holders=(), retry_after=1.5)
    copy = pickle.loads(pickle.dumps(busy))
    assert type(copy) is leasehold.TimedOut and (copy.retry_after, str(copy)) == (1.5, "waited")
    lost = pickle.loads(pickle.dumps(leasehold.Lost("gone", why="evicted")))
    assert lost.why == "evicted"
    assert issubclass(leasehold.TimedOut, leasehold.Busy) and issubclass(leasehold.Mismatch, leasehold.Invalid)


@pytest.mark.parametrize(
    "url", ["localhost:7420", "ftp://host", "http://", "http://user:secret@host", "http://host:secret", "http://host/?a=secret"]
    + ["redis://user:secret@host", "http://[::1", "http://[secret", "http://ho st", "http://host/s\u00fccret", "user:secret@host"],
)
def test_a_wrong_address_is_invalid_and_not_repeated(url: str) -> None:
    with pytest.raises(leasehold.Invalid) as caught:
        leasehold.Client(url)
    assert "secret" not in "".join(traceback.format_exception(type(caught.value), caught.value, None))


def test_secrets_are_not_shown() -> None:
    with pytest.raises(leasehold.Invalid) as caught:
        leasehold.Client("http://127.0.0.1:1", token="lh_1_secret\n")
    assert "secret" not in str(caught.value) and "line break" in str(caught.value)
    with pytest.raises(leasehold.Invalid) as caught:
        leasehold.Client("http://127.0.0.1:1", token=lambda: "lh_1_secret\n").info()
    assert "secret" not in str(caught.value)
    assert OWNER not in repr(_protocol.renew([Claim("report/1", 30, {}, OWNER)], 1))
    assert OWNER not in repr(Call("POST", "/v1/acquire", OWNER.encode()))


def test_requests_are_checked_before_they_are_sent() -> None:
    client = leasehold.Client("http://127.0.0.1:1")
    for wrong in [
        lambda: client.lease("report/1", ttl=0),
        lambda: client.lease("report/1", ttl=float("inf")),
        lambda: client.lease("report/1", ttl=float("nan")),
        lambda: client.lease("report/1", wait=float("nan")),
        lambda: client.order("pause", "report/1", why="a test", lasting=float("inf")),
        lambda: leasehold.Client(timeout=float("inf")),
        lambda: leasehold.Key("report/a b"),
        lambda: leasehold.Key("report/a%2fb"),
        lambda: leasehold.Key("report/~12"),
        lambda: client.lease("report"),
        lambda: client.semaphore("db/1", capacity=2, weight=3),
        lambda: client.all(),
        lambda: client.all(client.lease("a/1"), client.lease("a/1")),
        lambda: leasehold.Client(timeout=0),
        lambda: leasehold.Client("http://127.0.0.1:1", ca="/etc/ssl/ca.pem"),
        lambda: client.locked("report"),
        lambda: client.election("scheduler"),
        leasehold.current_lease,
    ]:
        with pytest.raises(leasehold.Invalid):
            wrong()


def test_batches_are_by_client_and_size_of_ttl() -> None:
    one, two = leasehold.Client("http://127.0.0.1:1"), leasehold.Client("http://127.0.0.1:1")

    def lease(client: leasehold.Client, ttl: float) -> leasehold.Lease:
        held = leasehold.Lease(client, Claim("report/1", ttl), Granted(ttl, ttl, 0, 1, None, None), Sent(0.0, 0.0))
        held._why = "released"
        return held

    leases = [lease(one, 30), lease(one, 1), lease(two, 30), lease(one, 29), *(lease(two, 5) for _ in range(600))]
    assert sorted(len(batch) for batch in batches(leases)) == [1, 1, 2, 100, 500]
