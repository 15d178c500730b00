"""redis-py's Lock. bench/peers/README.md has the protocol."""

import json
import sys
import threading
import time

import redis

TTL_S = 30
# Numbers of holders: the process times this, plus the task.
TASKS_MAX = 100_000

words = dict(word.split("=", 1) for word in sys.argv[1:])
tasks = int(words["tasks"])
hold_s = int(words["hold_us"]) / 1e6
host, port = words["address"].split(":")
client = redis.Redis(host=host, port=int(port))


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
                with client.lock(name, timeout=TTL_S):
                    pass
            except redis.RedisError as error:
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
                with client.lock(words["prefix"], timeout=TTL_S):
                    granted_at = time.monotonic_ns()
                    if hold_s > 0:
                        time.sleep(hold_s)
            except redis.RedisError as error:
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
with client.lock(f"{words['prefix']}-check-{words['process']}", timeout=TTL_S):
    pass
print("ready", flush=True)
for line in sys.stdin:
    started = time.monotonic_ns()
    measured = run(int(line.removeprefix("go ")))
    answer = vars(measured) | {"took_ns": time.monotonic_ns() - started}
    print(json.dumps(answer), flush=True)
