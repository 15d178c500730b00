-- The verb `acquire`, as leasehold_core::Model has it, step by step. One call, one transaction, one round trip.
--
-- takes  resource; owner; weight, capacity; ttl and place ttl in microseconds; whether it queues when blocked; whom it
--        succeeds, if anyone, and for how long that one is buried (-1: not at all); floor (0: none); note, holder; the
--        channel on which it hears; how many may wait
-- gives  one row: the verdict. If blocked, one more for each of the three holders that end soonest.
-- fails  LH001 no token is left, LH002 the line is full, LH003 the floor is too high. The detail names the claim: behind a
--        pool, an error that does not may be the answer to another client's request.
DO $$ BEGIN
    IF to_regtype('leasehold.verdict') IS NULL THEN
        CREATE TYPE leasehold.verdict AS (
            said       text,      -- granted, blocked, buried, mismatch; holder
            token      bigint,    -- of the grant, or the holder's
            remaining  bigint,    -- of the grant, or the holder's, in microseconds
            capacity   bigint,    -- of the others, if it does not match; else the holder's weight
            placed     boolean,
            ahead      bigint,
            changes_in bigint,    -- microseconds
            paused     boolean,
            version    bigint,    -- the cursor
            held_for   bigint,    -- of a holder, from here on
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
    claim_note bytea, claim_holder text, claim_client text, line_max bigint
) RETURNS SETOF leasehold.verdict
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was     leasehold.resource;
    r       leasehold.resource;
    seat    leasehold.seat;
    heir_of leasehold.seat;           -- whose seat it takes over
    answer  leasehold.verdict;
    minted  bigint;
    own     bigint;                   -- arrival of its place
    mine    leasehold.place;
    near    bigint;
    ahead   bigint;
    next    timestamptz;
    until   timestamptz;
    turns   bigint := 0;
    sits    boolean := false;
    named   text := encode(substr(claim_owner, 1, 4), 'hex') || '|' || claim_key;
BEGIN
    was := leasehold.lock(claim_key, true);
    r := leasehold.settle(was);

    -- As FencingToken::mint has it: at most 366 days ahead of the clock, unless the resource has had such a token.
    IF claim_floor > greatest(r.last, r.above) AND claim_floor > leasehold.clock(r.seen) + 31622400000000 THEN
        RAISE EXCEPTION 'the claim''s floor % is more than a year ahead of the backend''s clock; check where the client got '
            'this token, and the clock of the server', claim_floor USING ERRCODE = 'LH003', DETAIL = named;
    END IF;
    minted := greatest(r.last + 1, r.above + 1, claim_floor + 1, leasehold.clock(r.seen));
    IF minted >= 9007199254740992 THEN
        RAISE EXCEPTION 'no fencing token is left: they end below 2^53' USING ERRCODE = 'LH001', DETAIL = named;
    END IF;

    IF r.graves > 0 AND EXISTS (SELECT FROM leasehold.grave WHERE owner = claim_owner AND resource + 0 = r.id) THEN
        -- The claim is dead, but whom it was to succeed wanted to go all the same.
        IF from_owner IS NOT NULL THEN
            r := leasehold.depart(r, from_owner, from_bury);
        END IF;
        PERFORM leasehold.close(was, r);
        answer.said := 'buried';
        RETURN NEXT answer;
        RETURN;
    END IF;

    IF r.seats > 0 THEN
        SELECT * INTO seat FROM leasehold.seat WHERE owner = claim_owner AND resource + 0 = r.id;
        IF FOUND THEN
            PERFORM leasehold.close(was, r);
            -- A kept seat is nobody's: its owner has said farewell, so this is a request that comes late.
            answer.said := CASE WHEN seat.kept THEN 'buried' ELSE 'granted' END;
            answer.token := seat.token;
            answer.remaining := leasehold.micros(seat.ends - r.seen);
            RETURN NEXT answer;
            RETURN;
        END IF;
    END IF;

    IF (r.seats > 0 OR r.places > 0) AND r.capacity <> claim_capacity THEN
        r := leasehold.leave_line(r, claim_owner, false);
        PERFORM leasehold.close(was, r);
        answer.said := 'mismatch';
        answer.capacity := r.capacity;
        RETURN NEXT answer;
        RETURN;
    END IF;

    IF claim_queues AND r.places >= line_max
        AND NOT EXISTS (SELECT FROM leasehold.place WHERE owner = claim_owner AND resource + 0 = r.id)
    THEN
        RAISE EXCEPTION '% wait in line already', r.places USING ERRCODE = 'LH002', DETAIL = named;
    END IF;

    -- Succession: takes over a seat; or takes over a place, or finds nothing, and leaves the rest to the rule.
    IF from_owner IS NOT NULL THEN
        IF r.seats > 0 THEN
            SELECT * INTO heir_of FROM leasehold.seat
            WHERE owner = from_owner AND resource + 0 = r.id AND NOT kept AND weight >= claim_weight FOR UPDATE;
        END IF;
        IF heir_of.owner IS NOT NULL THEN
            IF claim_weight < heir_of.weight THEN
                -- A downgrade: the same work goes on with less, is never refused, and keeps the expiry.
                sits := true;
                turns := heir_of.turns;
                until := heir_of.ends;
            ELSE
                sits := r.paused_until IS NULL AND NOT heir_of.evicting AND (heir_of.turns < 16 OR r.places = 0);
                turns := heir_of.turns + 1;
                until := r.seen + leasehold.span(claim_ttl);
            END IF;
        ELSIF r.places > 0 THEN
            SELECT * INTO mine FROM leasehold.place WHERE owner = from_owner AND resource + 0 = r.id;
            IF FOUND THEN
                r := leasehold.leave_line(r, from_owner, true);
                IF claim_queues
                    AND NOT EXISTS (SELECT FROM leasehold.place WHERE owner = claim_owner AND resource + 0 = r.id)
                THEN
                    until := r.seen + leasehold.span(claim_place_ttl);
                    INSERT INTO leasehold.place (resource, arrival, owner, ends, weight, since, holder, client)
                    VALUES (r.id, mine.arrival, claim_owner, until, claim_weight, mine.since, claim_holder, claim_client);
                    r.places := r.places + 1;
                    r.settle_at := least(r.settle_at, until);
                END IF;
            END IF;
        END IF;
        r := leasehold.depart(r, from_owner, from_bury);
    END IF;

    -- The rule of seating: the weights of the holders, of the live places ahead, and its own fit the capacity.
    IF NOT sits THEN
        r.capacity := claim_capacity;
        turns := 0;
        IF r.places > 0 THEN
            SELECT arrival INTO own FROM leasehold.place WHERE owner = claim_owner AND resource + 0 = r.id;
        END IF;
        IF r.paused_until IS NULL AND r.held + claim_weight <= claim_capacity THEN
            near := 0;
            ahead := 0;
            IF r.places > 0 THEN
                SELECT count(*), coalesce(sum(weight), 0) INTO near, ahead
                FROM (SELECT weight FROM leasehold.place
                      WHERE resource = r.id AND arrival < coalesce(own, 9223372036854775807)
                      ORDER BY arrival LIMIT 65) head;
            END IF;
            sits := near <= 64 AND r.held + ahead + claim_weight <= claim_capacity;
            until := r.seen + leasehold.span(claim_ttl);
        END IF;
    END IF;

    IF sits THEN
        r := leasehold.leave_line(r, claim_owner, false);
        INSERT INTO leasehold.seat (resource, owner, ends, token, weight, since, turns, holder, note)
        VALUES (r.id, claim_owner, until, minted, claim_weight, r.seen, turns, claim_holder, claim_note);
        IF heir_of.weight > claim_weight THEN
            -- What an operator said to it stands, or evicting would be in vain.
            UPDATE leasehold.seat SET evicting = heir_of.evicting, asked_until = heir_of.asked_until,
                asked_by = heir_of.asked_by, asked_why = heir_of.asked_why
            WHERE owner = claim_owner AND resource + 0 = r.id;
        END IF;
        r.seats := r.seats + 1;
        r.held := r.held + claim_weight;
        r.last := minted;
        r.version := r.version + 1;
        r.settle_at := least(r.settle_at, until);
        PERFORM leasehold.close(was, r);
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
            UPDATE leasehold.place SET ends = greatest(ends, until), client = claim_client
            WHERE owner = claim_owner AND resource + 0 = r.id;
        ELSE
            SELECT arrival + 1 INTO own FROM leasehold.place WHERE resource = r.id ORDER BY arrival DESC LIMIT 1;
            own := coalesce(own, 0);
            INSERT INTO leasehold.place (resource, arrival, owner, ends, weight, since, holder, client)
            VALUES (r.id, own, claim_owner, until, claim_weight, r.seen, claim_holder, claim_client);
            r.places := r.places + 1;
            r.version := r.version + 1;
            r.settle_at := least(r.settle_at, until);
        END IF;
    END IF;
    PERFORM leasehold.close(was, r);

    SELECT count(*) FILTER (WHERE arrival < own), min(ends) FILTER (WHERE position <= 64) INTO near, next
    FROM (SELECT arrival, ends, row_number() OVER (ORDER BY arrival) AS position FROM leasehold.place
          WHERE resource = r.id ORDER BY arrival LIMIT 65) head;
    answer.said := 'blocked';
    answer.placed := own IS NOT NULL;
    -- Exact within the window, an upper bound beyond.
    answer.ahead := CASE WHEN own IS NULL THEN r.places WHEN near <= 64 THEN near ELSE r.places - 1 END;
    answer.paused := r.paused_until IS NOT NULL;
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
