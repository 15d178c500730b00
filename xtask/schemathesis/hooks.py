"""What schemathesis must know of this API.

1. Long waits are shortened on their way: the server may wait for a minute, the test may not. Only values that the document allows are
   changed, so that the bounds of `wait_ms` are still tested.
2. In a list each entry has its own status: a list with an invalid entry is taken for an invalid request.
3. OpenAPI 3.1 cannot express the methods LOCK and UNLOCK: they are taken out of the header `Allow`.
"""

import json

import schemathesis

WAIT_MS_MAX = 60_000
SHORTENED_MS = 20


def shorten(fields):
    if not isinstance(fields, dict):
        return
    wait_ms = fields.get("wait_ms")
    # A query has texts.
    if isinstance(wait_ms, str) and wait_ms.isascii() and wait_ms.isdigit() and SHORTENED_MS < int(wait_ms) <= WAIT_MS_MAX:
        fields["wait_ms"] = str(SHORTENED_MS)
    elif isinstance(wait_ms, int) and not isinstance(wait_ms, bool) and SHORTENED_MS < wait_ms <= WAIT_MS_MAX:
        fields["wait_ms"] = SHORTENED_MS


@schemathesis.hook
def before_call(context, case, kwargs):
    shorten(case.body)
    shorten(case.query)


@schemathesis.hook
def after_call(context, case, response):
    allow = response.headers.get("allow")
    if allow:
        known = [method for method in allow[0].split(", ") if method not in ("LOCK", "UNLOCK")]
        response.headers["allow"] = [", ".join(known)]
    if response.status_code == 200 and case.path in ("/v1/acquire", "/v1/renew", "/v1/release"):
        entries = next(iter(json.loads(response.content).values()))
        invalid = [entry for entry in entries if isinstance(entry, dict) and entry.get("status") == 422]
        if isinstance(entries, list) and invalid:
            response.status_code = 422
            response.content = json.dumps(invalid[0]).encode()
            response.headers["content-type"] = ["application/problem+json"]
