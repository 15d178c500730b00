"""redis-py's Lock, and the leasehold client. bench/peers/README.md has the protocol."""

import json
import sys
import threading
import time
from pathlib import Path

TTL_S = 30
# Numbers of holders: the process times this, plus the task.
TASKS_MAX = 100_000

words = dict(word.split("=", 1) for word in sys.argv[1:])
tasks = int(words["tasks"])
hold_s = int(words["hold_us"]) / 1e6


def redis_py():
    """redis-py's Lock, straight to Redis."""
    import redis

    host, port = words["address"].split(":")
    client = redis.Redis(host=host, port=int(port))
    return lambda name: client.lock(name, timeout=TTL_S), redis.RedisError


def leasehold_client():
    """The client of this repository, through the server."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python/src"))
    import leasehold

    client = leasehold.Client(words["url"])
    return lambda name: client.lease(f"python/{name}", ttl=TTL_S, wait=None), leasehold.LeaseholdError


locks = {"redis-py": redis_py, "leasehold": leasehold_client}
if words["lock"] not in locks:
    sys.exit(f"there is no lock called {words['lock']}")
# What makes a context that holds the lock, and the errors after which it is tried again.
lock_on, LibraryError = locks[words["lock"]]()


class Measured:
    """What one thread measured."""

    def __init__(self):
        self.done = 0
        self.errors = 0
        self.latencies_ns = []
        self.grants = []

    def add(self, other):
        self.done += other.done
        self.errors += other.errors
        self.latencies_ns += other.latencies_ns
        self.grants += other.grants

    def failed(self, error):
        self.errors += 1
        print(repr(error), file=sys.stderr)
        time.sleep(0.001)


def run_all(task):
    """Runs the tasks side by side, each on a thread of its own, and adds up what they measured."""
    each = [Measured() for _ in range(tasks)]
    threads = [threading.Thread(target=task, args=(number, each[number])) for number in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Measured()
    for one in each:
        total.add(one)
    return total


def pairs(millis):
    until = time.monotonic_ns() + millis * 1_000_000

    def task(number, measured):
        name = f"{words['prefix']}-{words['process']}-{number}"
        while (started := time.monotonic_ns()) < until:
            try:
                with lock_on(name):
                    pass
            except LibraryError as error:
                measured.failed(error)
                continue
            measured.done += 1
            measured.latencies_ns.append(time.monotonic_ns() - started)

    return run_all(task)


def handovers(millis):
    until = time.monotonic_ns() + millis * 1_000_000

    def task(number, measured):
        while time.monotonic_ns() < until:
            try:
                with lock_on(words["prefix"]):
                    granted_at = time.monotonic_ns()
                    if hold_s > 0:
                        time.sleep(hold_s)
            except LibraryError as error:
                measured.failed(error)
                continue
            if granted_at < until:
                measured.done += 1
                measured.grants += [granted_at, int(words["process"]) * TASKS_MAX + number]

    return run_all(task)


works = {"pair": pairs, "handover": handovers}
if words["work"] not in works:
    sys.exit(f"this program has no work called {words['work']}")
run = works[words["work"]]
# One pair before "ready": a lock that does not work at all says why.
with lock_on(f"{words['prefix']}-check-{words['process']}"):
    pass
print("ready", flush=True)
for line in sys.stdin:
    started = time.monotonic_ns()
    measured = run(int(line.removeprefix("go ")))
    answer = vars(measured) | {"took_ns": time.monotonic_ns() - started}
    print(json.dumps(answer), flush=True)
