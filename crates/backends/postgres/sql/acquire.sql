-- The verb `acquire`: the same steps as leasehold_core::Model, in one call, one transaction, one round trip. ADR 0021.
--
--  1. Lock the row of the resource and drop what has expired. The owner is heard; pass over claims that do not answer.
--  2. Compute the next fencing token. Fail if the floor is too high or no token is left.
--  3. The owner has a tombstone: refuse, but still release the predecessor.
--  4. The owner holds already: return the same grant.
--  5. Other claims use another capacity: refuse.
--  6. The queue is full: fail.
--  7. The claim takes over from a predecessor: take its seat or its place in the queue, and remove the predecessor.
--  8. Otherwise apply the admission rule: the weights of the holders, of the live claims ahead in the queue, and its own must
--     fit the capacity.
--  9. Granted: insert the seat. Blocked: insert or extend the place, or leave the queue if the claim does not queue.
-- 10. Call the claims that can be granted now.
--
-- The table `seat` has the holders, `place` the queue, `grave` the tombstones.
--
-- takes  claim_key         the resource
--        claim_owner       the owner token
--        claim_weight, claim_capacity
--        claim_ttl         of the lease, in microseconds
--        claim_place_ttl   of the place in the queue, in microseconds
--        claim_queues      whether the claim queues when it is blocked
--        from_owner        the predecessor that it takes over from, or null
--        from_bury         how long the predecessor gets a tombstone, in microseconds; -1: none
--        claim_floor       the new token must be above this; 0: no floor
--        claim_note, claim_holder
--        claim_client      the channel on which to notify the client; empty: it polls
--        line_max          the most claims in the queue
--        claim_client_id   the client; null: the claim has nothing to do with other claims
--        claim_listener    the number of the lock that the client holds while it listens; null: it is not known to listen
-- gives  one row with the verdict. If blocked, one more row for each of the three holders that expire soonest.
-- fails  LH001 no token is left, LH002 the queue is full, LH003 the floor is too high. The DETAIL names the claim. Behind a
--        pool, an error without it may belong to the request of another client (ADR 0034).
DO $$ BEGIN
    IF to_regtype('leasehold.verdict') IS NULL THEN
        CREATE TYPE leasehold.verdict AS (
            said       text,      -- granted, blocked, buried, mismatch; holder
            token      bigint,    -- of the grant, or of the holder
            remaining  bigint,    -- of the grant, or of the holder, in microseconds
            capacity   bigint,    -- of the other claims, if it does not match; in the row of a holder, its weight
            placed     boolean,
            ahead      bigint,
            changes_in bigint,    -- microseconds
            paused     boolean,
            version    bigint,    -- the cursor
            held_for   bigint,    -- if blocked: how long the pause still lasts. This and all below: in the row of a holder
            turns      bigint,
            evicting   boolean,
            kept       boolean,
            holder     text,
            note       bytea,
            asked_for  bigint,
            asked_by   text,
            asked_why  text
        );
    END IF;
END $$;

CREATE OR REPLACE FUNCTION leasehold.acquire(
    claim_key text, claim_owner bytea, claim_weight bigint, claim_capacity bigint, claim_ttl bigint,
    claim_place_ttl bigint, claim_queues boolean, from_owner bytea, from_bury bigint, claim_floor bigint,
    claim_note bytea, claim_holder text, claim_client text, line_max bigint, claim_client_id bigint,
    claim_listener integer
) RETURNS SETOF leasehold.verdict
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was         leasehold.resource;
    r           leasehold.resource;
    seat        leasehold.seat;
    predecessor leasehold.seat;       -- the seat that the claim takes over
    answer      leasehold.verdict;
    refused     text;
    minted      bigint;
    mine        leasehold.place;      -- its own place in the queue
    own         bigint;               -- the arrival number of that
    theirs      leasehold.place;      -- the place of the predecessor
    near        bigint;               -- live claims ahead in the queue, counted up to 65
    ahead       bigint;               -- their weights
    next        timestamptz;          -- when the resource changes next by itself
    until       timestamptz;
    turns       bigint := 0;
    is_granted  boolean := false;
    claim_name  text := encode(substr(claim_owner, 1, 4), 'hex') || '|' || claim_key;
BEGIN
    was := leasehold.lock(claim_key, true);
    refused := leasehold.refusal(was, claim_floor, leasehold.clock(was.seen));
    IF refused = 'LH003' THEN
        RAISE EXCEPTION 'the claim''s floor % is more than a year ahead of the backend''s clock; check where the client got '
            'this token, and the clock of the server', claim_floor USING ERRCODE = 'LH003', DETAIL = claim_name;
    END IF;
    IF refused = 'LH001' THEN
        RAISE EXCEPTION 'no fencing token is left: they end below 2^53' USING ERRCODE = 'LH001', DETAIL = claim_name;
    END IF;
    minted := greatest(was.last + 1, was.above + 1, claim_floor + 1, leasehold.clock(was.seen));

    -- The plain case, which needs no row but that of the resource. The steps below would do the same.
    IF leasehold.is_free(was, was.seen) AND from_owner IS NULL AND claim_weight <= claim_capacity THEN
        until := was.seen + leasehold.span(claim_ttl);
        INSERT INTO leasehold.seat (resource, owner, ends, token, weight, since, turns, holder, note)
        VALUES (was.id, claim_owner, until, minted, claim_weight, was.seen, 0, claim_holder, claim_note);
        UPDATE leasehold.resource SET capacity = claim_capacity, held = claim_weight, seats = 1, settle_at = until,
            last = minted, version = was.version + 1, seen = was.seen
        WHERE id = was.id;
        answer.said := 'granted';
        answer.token := minted;
        answer.remaining := claim_ttl;
        RETURN NEXT answer;
        RETURN;
    END IF;

    r := leasehold.settle(was);
    IF r.places > 0 THEN
        SELECT * INTO mine FROM leasehold.place WHERE owner = claim_owner AND resource + 0 = r.id;
        own := mine.arrival;
        -- That it was heard is written below: it leaves the queue, or its place is extended.
        IF mine.silent THEN
            UPDATE leasehold.place SET heard_at = r.seen, called_at = NULL, silent = false
            WHERE owner = claim_owner AND resource + 0 = r.id;
            r.version := r.version + 1;
        END IF;
        IF r.look_at <= r.seen THEN
            r := leasehold.pass_over(r, claim_owner);
        END IF;
    END IF;

    IF r.graves > 0 AND EXISTS (SELECT FROM leasehold.grave WHERE owner = claim_owner AND resource + 0 = r.id) THEN
        -- This owner has a tombstone, so refuse it. Still release its predecessor: that was part of the same request.
        IF from_owner IS NOT NULL THEN
            r := leasehold.depart(r, from_owner, from_bury);
        END IF;
        PERFORM leasehold.finish(was, r);
        answer.said := 'buried';
        RETURN NEXT answer;
        RETURN;
    END IF;

    IF r.seats > 0 THEN
        SELECT * INTO seat FROM leasehold.seat WHERE owner = claim_owner AND resource + 0 = r.id;
        IF FOUND THEN
            PERFORM leasehold.finish(was, r);
            -- A kept seat was released by its owner and only stays closed, so this is a late request.
            answer.said := CASE WHEN seat.kept THEN 'buried' ELSE 'granted' END;
            answer.token := seat.token;
            answer.remaining := leasehold.micros(seat.ends - r.seen);
            RETURN NEXT answer;
            RETURN;
        END IF;
    END IF;

    IF (r.seats > 0 OR r.places > 0) AND r.capacity <> claim_capacity THEN
        r := leasehold.leave_line(r, claim_owner, false);
        PERFORM leasehold.finish(was, r);
        answer.said := 'mismatch';
        answer.capacity := r.capacity;
        RETURN NEXT answer;
        RETURN;
    END IF;

    IF claim_queues AND r.places >= line_max AND own IS NULL THEN
        RAISE EXCEPTION 'the queue is full: % claims wait already; try again later', r.places
            USING ERRCODE = 'LH002', DETAIL = claim_name;
    END IF;

    -- Handover: the claim takes over a seat. Or it takes over a place, or finds nothing to take over: then the admission
    -- rule below decides.
    IF from_owner IS NOT NULL THEN
        IF r.seats > 0 THEN
            SELECT * INTO predecessor FROM leasehold.seat
            WHERE owner = from_owner AND resource + 0 = r.id AND NOT kept AND weight >= claim_weight FOR UPDATE;
        END IF;
        IF predecessor.owner IS NOT NULL THEN
            IF claim_weight < predecessor.weight THEN
                -- A downgrade: the same holder goes on with less weight. It is never refused and keeps its expiry.
                is_granted := true;
                turns := predecessor.turns;
                until := predecessor.ends;
            ELSE
                is_granted := r.paused_until IS NULL AND NOT predecessor.evicting
                    AND (predecessor.turns < 16 OR r.places = 0
                         OR NOT EXISTS (SELECT FROM leasehold.place WHERE resource + 0 = r.id AND NOT silent));
                turns := predecessor.turns + 1;
                until := r.seen + leasehold.span(claim_ttl);
            END IF;
        ELSIF r.places > 0 THEN
            SELECT * INTO theirs FROM leasehold.place WHERE owner = from_owner AND resource + 0 = r.id;
            IF FOUND THEN
                r := leasehold.leave_line(r, from_owner, true);
                IF claim_queues AND own IS NULL THEN
                    own := theirs.arrival;
                    until := r.seen + leasehold.span(claim_place_ttl);
                    INSERT INTO leasehold.place (resource, arrival, owner, ends, weight, since, holder, client, client_id,
                        listener, heard_at)
                    VALUES (r.id, own, claim_owner, until, claim_weight, theirs.since, claim_holder, claim_client,
                        claim_client_id, claim_listener, r.seen);
                    r.places := r.places + 1;
                    r.settle_at := least(r.settle_at, until);
                END IF;
            END IF;
        END IF;
        r := leasehold.depart(r, from_owner, from_bury);
        IF from_owner = claim_owner THEN
            own := NULL;
        END IF;
    END IF;

    -- The admission rule: the weights of the holders, of the live claims ahead in the queue, and its own fit the capacity.
    -- Only the first 64 live claims of the queue can be granted: the work stays the same however long the queue is.
    IF NOT is_granted THEN
        r.capacity := claim_capacity;
        turns := 0;
        IF r.paused_until IS NULL AND r.held + claim_weight <= claim_capacity THEN
            near := 0;
            ahead := 0;
            IF r.places > 0 THEN
                SELECT count(*), coalesce(sum(weight), 0) INTO near, ahead
                FROM (SELECT weight FROM leasehold.place
                      WHERE resource + 0 = r.id AND NOT silent AND arrival < coalesce(own, 9223372036854775807)
                      ORDER BY arrival LIMIT 65) head;
            END IF;
            is_granted := near <= 64 AND r.held + ahead + claim_weight <= claim_capacity;
            until := r.seen + leasehold.span(claim_ttl);
        END IF;
    END IF;

    IF is_granted THEN
        r := leasehold.leave_line(r, claim_owner, false);
        INSERT INTO leasehold.seat (resource, owner, ends, token, weight, since, turns, holder, note)
        VALUES (r.id, claim_owner, until, minted, claim_weight, r.seen, turns, claim_holder, claim_note);
        IF predecessor.weight > claim_weight THEN
            -- A downgrade keeps what an operator asked for. Otherwise a holder could escape its eviction by a downgrade.
            UPDATE leasehold.seat SET evicting = predecessor.evicting, asked_until = predecessor.asked_until,
                asked_by = predecessor.asked_by, asked_why = predecessor.asked_why
            WHERE owner = claim_owner AND resource + 0 = r.id;
        END IF;
        r.seats := r.seats + 1;
        r.held := r.held + claim_weight;
        r.last := minted;
        r.version := r.version + 1;
        r.settle_at := least(r.settle_at, until);
        PERFORM leasehold.finish(was, r);
        answer.said := 'granted';
        answer.token := minted;
        answer.remaining := leasehold.micros(until - r.seen);
        RETURN NEXT answer;
        RETURN;
    END IF;

    IF NOT claim_queues THEN
        r := leasehold.leave_line(r, claim_owner, false);
        own := NULL;
    ELSE
        until := r.seen + leasehold.span(claim_place_ttl);
        IF own IS NOT NULL THEN
            UPDATE leasehold.place SET ends = greatest(ends, until), client = claim_client, listener = claim_listener,
                heard_at = r.seen, called_at = NULL
            WHERE owner = claim_owner AND resource + 0 = r.id;
        ELSE
            SELECT arrival + 1 INTO own FROM leasehold.place WHERE resource = r.id ORDER BY arrival DESC LIMIT 1;
            own := coalesce(own, 0);
            INSERT INTO leasehold.place (resource, arrival, owner, ends, weight, since, holder, client, client_id, listener,
                heard_at)
            VALUES (r.id, own, claim_owner, until, claim_weight, r.seen, claim_holder, claim_client, claim_client_id,
                claim_listener, r.seen);
            r.places := r.places + 1;
            r.version := r.version + 1;
            r.settle_at := least(r.settle_at, until);
        END IF;
    END IF;
    -- It answered its call and is blocked. With the weight that its place was stored with it may still fit: then it is called
    -- again.
    IF (mine.called_at IS NOT NULL OR mine.silent) AND r.held < r.capacity THEN
        was.look_at := '-infinity';
    END IF;
    r := leasehold.finish(was, r);

    SELECT count(*) FILTER (WHERE arrival < coalesce(own, 9223372036854775807)),
        least(min(ends) FILTER (WHERE position <= 64),
              min(called_at) FILTER (WHERE position <= 64) + interval '1 second')
    INTO near, next
    FROM (SELECT arrival, ends, called_at, row_number() OVER (ORDER BY arrival) AS position FROM leasehold.place
          WHERE resource + 0 = r.id AND NOT silent ORDER BY arrival LIMIT 65) head;
    answer.said := 'blocked';
    answer.placed := own IS NOT NULL;
    -- Live claims. Exact within the first 64, an upper bound beyond.
    answer.ahead := CASE WHEN near <= 64 THEN near
        ELSE r.places - (SELECT count(*) FROM leasehold.place WHERE resource + 0 = r.id AND silent)
            - CASE WHEN own IS NULL THEN 0 ELSE 1 END
        END;
    answer.paused := r.paused_until IS NOT NULL;
    answer.held_for := leasehold.micros(r.paused_until - r.seen);
    answer.version := r.version;
    next := least(next, r.paused_until,
        (SELECT ends FROM leasehold.seat WHERE resource = r.id ORDER BY ends LIMIT 1));
    answer.changes_in := leasehold.micros(next - r.seen);
    RETURN NEXT answer;
    RETURN QUERY
        SELECT 'holder', s.token, leasehold.micros(s.ends - r.seen), s.weight, NULL::boolean, NULL::bigint, NULL::bigint,
            NULL::boolean, NULL::bigint, leasehold.micros(r.seen - s.since), s.turns, s.evicting, s.kept, s.holder, s.note,
            leasehold.micros(s.asked_until - r.seen), s.asked_by, s.asked_why
        FROM leasehold.seat s WHERE s.resource = r.id ORDER BY s.ends, s.owner LIMIT 3;
END $$;
