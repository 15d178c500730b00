package io.github.leasehold;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.StringJoiner;

/**
 * Requests and answers of the HTTP API, as pure functions: no connection, no clock, no thread.
 *
 * <ol>
 *   <li>A request is a {@link Call}. Each one may be sent again as it is, except orders.
 *   <li>An answer that does not name its claim (key and owner hash) is never a grant: its effect is unknown.
 *   <li>A refusal is a problem document, which becomes an exception of this package: {@link Problems}.
 * </ol>
 */
final class Protocol {
    /** The most entries in one request; the server takes 1000. */
    static final int ENTRIES_MAX = 500;

    private Protocol() {}

    /** Which connections a request uses. Renewals and releases have their own. */
    enum Lane {
        CLAIMS,
        LEASES
    }

    /**
     * A request.
     *
     * @param body null for a query
     * @param atMost how long the answer may take
     */
    record Call(String path, String body, Duration atMost, Lane lane, boolean mayRepeat) {
        @Override
        public String toString() {
            return path; // the body has the owner token
        }
    }

    /** An answer of a leasehold server, on our store, to our request. */
    record Answer(int status, byte[] body) {}

    /** The verdict on a claim: {@code grant} is empty if it is queued. */
    record Verdict(Optional<Grant> grant) {}

    /** The claim holds the resource. A shared grant has a number, an exclusive one a token and a pass. */
    record Grant(Times.Left left, OptionalLong token, OptionalLong number, Optional<String> pass) {
        /** What a renewal of this grant must name. */
        long tokenOrNumber() {
            return token.orElseGet(number::getAsLong);
        }
    }

    /** A renewal of this claim for so long. {@code grant} is the token or number of the lease; 0 if it is not known. */
    record Renewal(Claim claim, Duration ttl, long grant) {
        private Map<String, Object> body() {
            Map<String, Object> body = claim.reference();
            body.put("ttl_ms", millis(ttl));
            return body;
        }
    }

    /** The lease was renewed. */
    record Kept(Times.Left left, Optional<FinishRequest> asked, boolean evicting) {}

    /** The outcome of one entry of a list: one of the two is null. */
    record Outcome(Kept kept, LeaseholdException error) {}

    /** At least 1: zero is refused. */
    static long millis(Duration duration) {
        return Math.max(1, duration.toMillis());
    }

    private static Call post(String path, Object body, Duration atMost, Lane lane) {
        return new Call(path, Json.write(body), atMost, lane, true);
    }

    /** Asks for the lease. The server waits for up to {@code wait}; with {@code keepsPlace} the claim stays in the queue after that. */
    static Call acquire(Claim claim, Duration wait, boolean keepsPlace, Duration timeout) {
        Map<String, Object> body = claim.reference();
        body.put("ttl_ms", millis(claim.ttl()));
        body.putAll(claim.options());
        if (wait.toMillis() > 0) {
            body.put("wait_ms", wait.toMillis());
        }
        if (keepsPlace) {
            body.put("when_blocked", "queue");
        }
        // A wait is repeated by its caller, which knows how much time is left.
        return new Call("/v1/acquire", Json.write(body), wait.plus(timeout), Lane.CLAIMS, wait.isZero());
    }

    static Verdict readAcquire(Answer answer, Claim claim) {
        return reading(() -> {
            Doc doc = document(answer, claim);
            String verdict = doc.optText("verdict").orElse("");
            if (answer.status() == 202 && verdict.equals("queued")) {
                return new Verdict(Optional.empty());
            }
            if (answer.status() != 200 || !verdict.equals("granted")) {
                throw UnavailableException.unknown("the answer to a claim on " + claim.resource() + " has an unknown verdict");
            }
            return new Verdict(Optional.of(readGrant(doc, claim)));
        });
    }

    private static Grant readGrant(Doc doc, Claim claim) {
        Times.Left left = new Times.Left(doc.millis("ttl_ms"), doc.millis("remaining_ms"), doc.millis("waited_ms"));
        Grant grant = new Grant(left, doc.optToken("token"), doc.optToken("number"), doc.optText("pass"));
        boolean isShared = claim.options().containsKey("share");
        // A write lock and a share of the whole capacity are exclusive, so they have a token.
        boolean fits = grant.token.isPresent()
                ? grant.pass.equals(Optional.of(grant.token.getAsLong() + " " + claim.ownerHash() + " " + claim.resource()))
                : isShared && grant.number.isPresent() && grant.pass.isEmpty();
        if (!fits) {
            throw UnavailableException.unknown("the grant of " + claim.resource() + " does not fit its claim");
        }
        return grant;
    }

    /** Renews several leases in one request. */
    static Call renew(List<Renewal> renewals, Duration timeout) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("leases", renewals.stream().map(Renewal::body).toList());
        // The server answers a little earlier than we stop waiting, for what its store has answered by then.
        body.put("timeout_ms", millis(timeout.multipliedBy(9).dividedBy(10)));
        return post("/v1/renew", body, timeout, Lane.LEASES);
    }

    /** Renews one lease, with another note if there is one. */
    static Call renewOne(Renewal renewal, Optional<Note> note, Duration timeout) {
        Map<String, Object> body = renewal.body();
        note.map(Note::field).ifPresent(field -> body.put(field.getKey(), field.getValue()));
        return post("/v1/renew", body, timeout, Lane.LEASES);
    }

    static Kept readRenewal(Answer answer, Renewal renewal) {
        return reading(() -> kept(document(answer, renewal.claim), renewal));
    }

    /** The outcome for each lease of a list. */
    static List<Outcome> readRenewals(Answer answer, List<Renewal> renewals) {
        return reading(() -> {
            List<Doc> entries = document(answer, null).docs("leases");
            if (entries.size() != renewals.size()) {
                throw UnavailableException.unknown("the answer to a renewal has another number of leases");
            }
            List<Outcome> outcomes = new ArrayList<>();
            for (int i = 0; i < entries.size(); i++) {
                outcomes.add(outcome(entries.get(i), renewals.get(i)));
            }
            return outcomes;
        });
    }

    private static Outcome outcome(Doc entry, Renewal renewal) {
        try {
            return new Outcome(reading(() -> {
                boolean isRefusal = entry.optText("kind").isPresent();
                Claim claim = renewal.claim;
                if (isRefusal ? !claim.isRefusedBy(entry) : !claim.isNamedBy(entry)) {
                    throw UnavailableException.unknown("the answer to a renewal names another claim");
                }
                if (isRefusal) {
                    throw Problems.read(entry);
                }
                return kept(entry, renewal);
            }), null);
        } catch (LeaseholdException error) {
            return new Outcome(null, error);
        }
    }

    private static Kept kept(Doc doc, Renewal renewal) {
        String verdict = doc.optText("verdict").orElse("");
        String resource = renewal.claim.resource();
        if (verdict.equals("queued")) {
            throw new LostException("the claim on " + resource + " only waits in the queue", LossReason.NOT_THERE, null);
        }
        if (!verdict.equals("kept")) {
            throw UnavailableException.unknown("the answer to a renewal has an unknown verdict");
        }
        long grant = doc.optToken("grant").orElseThrow(() -> new Doc.DocException("the field grant is missing"));
        if (renewal.grant != 0 && grant != renewal.grant) {
            // The store has forgotten the lease, and a delayed request of this claim was granted anew. Others may have held it between.
            throw new LostException(
                    "the claim on " + resource + " has the grant " + grant + ", and no longer " + renewal.grant, LossReason.NOT_THERE, null);
        }
        Times.Left left = new Times.Left(doc.millis("ttl_ms"), doc.millis("remaining_ms"), Duration.ZERO);
        return new Kept(
                left.cappedBy(renewal.ttl, Duration.ZERO), doc.optDoc("asked").map(FinishRequest::read), doc.flag("evicting"));
    }

    /**
     * A release of a claim. {@code tombstone} is how long a delayed request of the claim is refused, {@code keepFor} how long the resource
     * stays closed.
     */
    record ReleaseRequest(Claim claim, Duration tombstone, Duration keepFor) {
        Map<String, Object> body() {
            Map<String, Object> body = claim.reference();
            if (!tombstone.isZero()) {
                body.put("bury_ms", millis(tombstone));
            }
            if (!keepFor.isZero()) {
                body.put("keep_for_ms", millis(keepFor));
            }
            return body;
        }
    }

    static Call release(ReleaseRequest request, Duration timeout) {
        return post("/v1/release", request.body(), timeout, Lane.LEASES);
    }

    /** Whether this request has ended the claim; false if it was gone already. */
    static boolean readRelease(Answer answer, Claim claim) {
        return reading(() -> switch (document(answer, claim).optText("verdict").orElse("")) {
            case "released" -> true;
            case "already_gone" -> false;
            default -> throw UnavailableException.unknown("the answer to a release has an unknown verdict");
        });
    }

    /** A query. */
    static Call get(String path, Map<String, String> query, Duration atMost) {
        StringJoiner parameters = new StringJoiner("&", "?", "").setEmptyValue("");
        query.forEach((name, value) -> parameters.add(name + "=" + URLEncoder.encode(value, StandardCharsets.UTF_8)));
        return new Call(path + parameters, null, atMost, Lane.CLAIMS, true);
    }

    /** An operator's order, which is never sent twice. */
    static Call order(Order order, Duration timeout) {
        return new Call("/v1/orders", Json.write(order.fields()), timeout, Lane.CLAIMS, false);
    }

    /** The answer to a query or an order. */
    static <T> T readDocument(Answer answer, java.util.function.Function<Doc, T> reader) {
        return reading(() -> reader.apply(document(answer, null)));
    }

    /** The document of an answer. A refusal is thrown. */
    private static Doc document(Answer answer, Claim claim) {
        boolean isRefusal = answer.status() >= 400;
        if (!isRefusal && answer.status() / 100 != 2) {
            throw UnavailableException.unknown("the server answered with status " + answer.status());
        }
        Doc doc = Doc.read(answer.body());
        if (claim != null && !(isRefusal ? claim.isRefusedBy(doc) : claim.isNamedBy(doc))) {
            throw UnavailableException.unknown("the answer to a request about " + claim.resource() + " names another claim");
        }
        if (isRefusal) {
            throw Problems.read(doc);
        }
        return doc;
    }

    private static <T> T reading(java.util.function.Supplier<T> reader) {
        try {
            return reader.get();
        } catch (Doc.DocException error) {
            throw new UnavailableException("the answer of the server cannot be read: " + error.getMessage(), Effect.UNKNOWN, error);
        }
    }
}
