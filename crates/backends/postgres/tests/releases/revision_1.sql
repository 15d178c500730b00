-- Leases in PostgreSQL, format 1. Safe to execute again.
BEGIN;
SET LOCAL client_min_messages = warning;
SELECT pg_advisory_xact_lock(7815042690214861);

DO $$ BEGIN
    IF to_regnamespace('leasehold') IS NULL THEN
        CREATE SCHEMA leasehold;
    END IF;
END $$;

-- The tables, format 1. They stand in a schema of their own, which everything here names: `leasehold.`
--
-- Times are the server's. Numbers that mean "none" are 0, moments that mean "never" are infinity. A later format may
-- add columns with defaults: every statement names those it writes.

CREATE TABLE IF NOT EXISTS leasehold.meta (
    name  text PRIMARY KEY,   -- format; revision of the functions; forgotten: see resource.above
    value bigint NOT NULL
);

-- What is contended. Sums and counts of the other tables stand here, so that a claim on what is free reads one row.
-- Every verb but a renewal locks this row first. No index has a column that changes: its updates stay on their page.
CREATE TABLE IF NOT EXISTS leasehold.resource (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key           text COLLATE "C" NOT NULL UNIQUE,
    capacity      bigint NOT NULL DEFAULT 0,   -- of those who are there; without meaning while nobody is
    held          bigint NOT NULL DEFAULT 0,   -- weights of the seats
    seats         bigint NOT NULL DEFAULT 0,
    places        bigint NOT NULL DEFAULT 0,
    graves        bigint NOT NULL DEFAULT 0,
    settle_at     timestamptz NOT NULL DEFAULT 'infinity',     -- nothing here ends before
    paused_until  timestamptz,
    last          bigint NOT NULL DEFAULT 0,   -- token
    above         bigint NOT NULL DEFAULT 0,   -- the greatest last token of rows that were swept before this one
    version       bigint NOT NULL,             -- the cursor; begins at the clock, so that it never repeats
    watched_until timestamptz NOT NULL DEFAULT '-infinity',    -- someone without a place waits for a change until then
    seen          timestamptz NOT NULL         -- when a verb was last here
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- Who holds.
CREATE TABLE IF NOT EXISTS leasehold.seat (
    resource    bigint NOT NULL,
    owner       bytea NOT NULL,                -- 16 bytes: a secret, the capability to renew and release
    ends        timestamptz NOT NULL,
    token       bigint NOT NULL,
    weight      bigint NOT NULL,
    since       timestamptz NOT NULL,
    turns       bigint NOT NULL DEFAULT 0,
    evicting    boolean NOT NULL DEFAULT false,
    kept        boolean NOT NULL DEFAULT false,   -- released, and to stay closed until it ends
    holder      text NOT NULL,
    note        bytea,
    asked_until timestamptz,
    asked_by    text,
    asked_why   text,
    PRIMARY KEY (owner, resource)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX IF NOT EXISTS seat_end ON leasehold.seat (resource, ends);

-- Who waits, by arrival.
CREATE TABLE IF NOT EXISTS leasehold.place (
    resource bigint NOT NULL,
    arrival  bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    weight   bigint NOT NULL,
    since    timestamptz NOT NULL,
    holder   text NOT NULL,
    client   text NOT NULL,                    -- the channel on which its owner hears; empty: it polls
    PRIMARY KEY (resource, arrival)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX IF NOT EXISTS place_owner ON leasehold.place (owner, resource);
CREATE INDEX IF NOT EXISTS place_end ON leasehold.place (resource, ends);

-- Whose requests come to nothing.
CREATE TABLE IF NOT EXISTS leasehold.grave (
    resource bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    evicted  boolean NOT NULL,                 -- by an operator; else buried
    PRIMARY KEY (owner, resource)
);
CREATE INDEX IF NOT EXISTS grave_end ON leasehold.grave (resource, ends);

-- Who waits for any change, without a place. A row goes when its client is told.
CREATE TABLE IF NOT EXISTS leasehold.watcher (
    resource bigint NOT NULL,
    client   text NOT NULL,
    ends     timestamptz NOT NULL,
    PRIMARY KEY (resource, client)
);

-- What operators did; the last ten thousand.
CREATE TABLE IF NOT EXISTS leasehold.audit (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    resource text NOT NULL,                    -- key
    command  text NOT NULL,
    token    bigint NOT NULL,
    by       text NOT NULL,
    why      text NOT NULL,
    done     boolean NOT NULL
);

-- What the verbs share: locking the row of a resource, dropping what has ended, writing it back, telling whom that
-- concerns. A row travels as a value; `seen` is the moment at which its verb is executed.
--
-- Every read here has one index that serves it, and is written so that no other does: by owner (`resource + 0` hides
-- the resource from the other indexes), or by resource in the order of an index. A table that was empty a moment ago has
-- no statistics, and the planner would rather read a whole line of ten thousand, or sort it, at each claim.

-- How long it is, in microseconds; zero if that is past.
CREATE OR REPLACE FUNCTION leasehold.micros(span interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN span IS NOT NULL THEN greatest(0, (extract(epoch FROM span) * 1000000)::bigint) END
$$;

-- A moment as a token.
CREATE OR REPLACE FUNCTION leasehold.clock(moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT (extract(epoch FROM moment) * 1000000)::bigint $$;

-- takes  how many microseconds
CREATE OR REPLACE FUNCTION leasehold.span(micros bigint) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$ SELECT micros * interval '1 microsecond' $$;

-- A lost commit is a grant given twice, or a renewal that never was: what the database otherwise tolerates does not
-- apply here. Until the end of the transaction.
CREATE OR REPLACE FUNCTION leasehold.commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Forgets resources where nobody has been for an hour: a few, from a random place on, for every new one. So idle rows
-- stay a small part of all, and no index on a moment that changes is needed to find them. What is removed leaves its
-- token behind: new rows begin above it. That number is rounded up by a minute, so that it is seldom written.
CREATE OR REPLACE FUNCTION leasehold.sweep(newest bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    old    timestamptz := moment - interval '1 hour';
    near   bigint[];
    doomed bigint[];
    top    bigint;
BEGIN
    near := ARRAY(SELECT id FROM leasehold.resource
                  WHERE id > (random() * newest)::bigint - 1 AND id < newest ORDER BY id LIMIT 8);
    SELECT array_agg(idle.id), max(greatest(idle.last, idle.above)) INTO doomed, top FROM (
        SELECT id, last, above FROM leasehold.resource r
        WHERE id = ANY (near) AND seen < old AND last < leasehold.clock(old) AND watched_until <= moment
          AND (paused_until IS NULL OR paused_until <= moment)
          AND NOT EXISTS (SELECT FROM leasehold.seat WHERE resource = r.id AND ends > moment)
          AND NOT EXISTS (SELECT FROM leasehold.place WHERE resource = r.id AND ends > moment)
          AND NOT EXISTS (SELECT FROM leasehold.grave WHERE resource = r.id AND ends > moment)
        FOR UPDATE SKIP LOCKED) idle;
    IF doomed IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM leasehold.seat WHERE resource = ANY (doomed);
    DELETE FROM leasehold.place WHERE resource = ANY (doomed);
    DELETE FROM leasehold.grave WHERE resource = ANY (doomed);
    DELETE FROM leasehold.watcher WHERE resource = ANY (doomed);
    DELETE FROM leasehold.resource WHERE id = ANY (doomed);
    UPDATE leasehold.meta SET value = top + 60000000 WHERE name = 'forgotten' AND value < top;
END $$;

-- Locks the row of a resource until the end of the transaction; whoever else wants it waits for that.
-- takes  key, whether to make the row if there is none
-- gives  the row; one of nulls if there is none
CREATE OR REPLACE FUNCTION leasehold.lock(wanted text, make boolean) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    r leasehold.resource;
BEGIN
    PERFORM leasehold.commit_durably();
    LOOP
        SELECT * INTO r FROM leasehold.resource WHERE key = wanted FOR NO KEY UPDATE;
        EXIT WHEN FOUND OR NOT make;
        INSERT INTO leasehold.resource (key, version, seen)
        VALUES (wanted, leasehold.clock(clock_timestamp()), clock_timestamp())
        ON CONFLICT (key) DO NOTHING RETURNING * INTO r;
        IF FOUND THEN
            -- Read after the insert, which may have waited for the sweep of an earlier row.
            SELECT value INTO r.above FROM leasehold.meta WHERE name = 'forgotten';
            r.above := coalesce(r.above, 0);
            UPDATE leasehold.resource SET above = r.above WHERE id = r.id AND above <> r.above;
            PERFORM leasehold.sweep(r.id);
            EXIT;
        END IF;
    END LOOP;
    -- Only now: time goes on while one waits for the row.
    IF r.id IS NOT NULL THEN
        r.seen := clock_timestamp();
    END IF;
    RETURN r;
END $$;

-- Drops what has ended. What a renewal has locked at this moment is left alone: it decides, and nobody waits.
CREATE OR REPLACE FUNCTION leasehold.settle(r leasehold.resource) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    gone    bigint;
    weights bigint;
    clients text[];
BEGIN
    IF r.settle_at > r.seen THEN
        RETURN r;
    END IF;
    IF r.seats > 0 THEN
        WITH ended AS (
            SELECT owner FROM leasehold.seat WHERE resource = r.id AND ends <= r.seen ORDER BY ends FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM leasehold.seat s USING ended WHERE s.owner = ended.owner AND s.resource + 0 = r.id
            RETURNING s.weight
        )
        SELECT count(*), coalesce(sum(weight), 0) INTO gone, weights FROM deleted;
        r.seats := r.seats - gone;
        r.held := r.held - weights;
        r.version := r.version + gone;
    END IF;
    IF r.places > 0 THEN
        WITH ended AS (
            SELECT owner FROM leasehold.place WHERE resource = r.id AND ends <= r.seen ORDER BY ends FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM leasehold.place p USING ended WHERE p.owner = ended.owner AND p.resource + 0 = r.id
            RETURNING p.client
        )
        SELECT count(*), array_agg(DISTINCT client) FILTER (WHERE client <> '') INTO gone, clients FROM deleted;
        r.places := r.places - gone;
        r.version := r.version + gone;
        PERFORM pg_notify(client, '!|' || r.key) FROM unnest(clients) AS client;
    END IF;
    IF r.graves > 0 THEN
        WITH ended AS (SELECT owner FROM leasehold.grave WHERE resource = r.id AND ends <= r.seen ORDER BY ends)
        DELETE FROM leasehold.grave g USING ended WHERE g.owner = ended.owner AND g.resource + 0 = r.id;
        GET DIAGNOSTICS gone = ROW_COUNT;
        r.graves := r.graves - gone;
    END IF;
    IF r.paused_until <= r.seen THEN
        r.paused_until := NULL;
        r.version := r.version + 1;
    END IF;
    r.settle_at := least(
        coalesce((SELECT ends FROM leasehold.seat WHERE resource = r.id ORDER BY ends LIMIT 1), 'infinity'),
        coalesce((SELECT ends FROM leasehold.place WHERE resource = r.id ORDER BY ends LIMIT 1), 'infinity'),
        coalesce((SELECT ends FROM leasehold.grave WHERE resource = r.id ORDER BY ends LIMIT 1), 'infinity'),
        coalesce(r.paused_until, 'infinity'));
    RETURN r;
END $$;

-- Writes the row back if it changed, and tells those whom that concerns: whoever watches, and those at the head of the
-- line who can move now. A place that could move before was told then, so only what makes room is looked at. Notifying
-- takes a lock of the whole database at the commit, hence nobody is told without need; whoever polls has no channel.
-- takes  the row as it was locked, the row as it is to be
CREATE OR REPLACE FUNCTION leasehold.close(was leasehold.resource, r leasehold.resource) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    told record;
BEGIN
    IF r.version <> was.version AND r.watched_until > r.seen THEN
        FOR told IN DELETE FROM leasehold.watcher WHERE resource = r.id RETURNING client LOOP
            PERFORM pg_notify(told.client, '*|' || r.key);
        END LOOP;
        r.watched_until := '-infinity';
    END IF;
    IF r.places > 0 AND r.paused_until IS NULL AND r.held < r.capacity
        AND (r.held < was.held OR r.places < was.places OR r.capacity <> was.capacity OR was.paused_until IS NOT NULL)
    THEN
        PERFORM pg_notify(head.client, encode(substr(head.owner, 1, 4), 'hex') || '|' || r.key)
        FROM (SELECT near.client, near.owner, sum(near.weight) OVER (ORDER BY near.arrival) AS taken
              FROM (SELECT client, owner, weight, arrival FROM leasehold.place
                    WHERE resource = r.id ORDER BY arrival LIMIT 64) near) head
        WHERE r.held + head.taken <= r.capacity AND head.client <> '';
    END IF;
    IF (r.version, r.capacity, r.settle_at, r.graves, r.watched_until)
        IS DISTINCT FROM (was.version, was.capacity, was.settle_at, was.graves, was.watched_until)
    THEN
        UPDATE leasehold.resource SET capacity = r.capacity, held = r.held, seats = r.seats, places = r.places,
            graves = r.graves, settle_at = r.settle_at, paused_until = r.paused_until, last = r.last,
            version = r.version, watched_until = r.watched_until, seen = r.seen
        WHERE id = r.id;
    END IF;
END $$;

-- Gives up the seat of an owner, if it has one that it has not yet said farewell to.
CREATE OR REPLACE FUNCTION leasehold.stand_up(r leasehold.resource, whose bytea) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    freed bigint;
BEGIN
    IF r.seats > 0 THEN
        DELETE FROM leasehold.seat WHERE owner = whose AND resource + 0 = r.id AND NOT kept RETURNING weight INTO freed;
        IF FOUND THEN
            r.seats := r.seats - 1;
            r.held := r.held - freed;
            r.version := r.version + 1;
        END IF;
    END IF;
    RETURN r;
END $$;

-- Gives up the place of an owner, if it has one. It is told, in case it waits all the same, unless it asked for this.
CREATE OR REPLACE FUNCTION leasehold.leave_line(r leasehold.resource, whose bytea, tell boolean)
RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    hears text;
BEGIN
    IF r.places > 0 THEN
        DELETE FROM leasehold.place WHERE owner = whose AND resource + 0 = r.id RETURNING client INTO hears;
        IF FOUND THEN
            r.places := r.places - 1;
            r.version := r.version + 1;
            IF tell AND hears <> '' THEN
                PERFORM pg_notify(hears, encode(substr(whose, 1, 4), 'hex') || '|' || r.key);
            END IF;
        END IF;
    END IF;
    RETURN r;
END $$;

-- A request of this owner that comes late comes to nothing.
-- takes  the row, whose, for how many microseconds, whether an operator evicted it
CREATE OR REPLACE FUNCTION leasehold.bury(r leasehold.resource, whose bytea, keep bigint, by_operator boolean)
RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    is_new boolean;
    until  timestamptz := r.seen + leasehold.span(keep);
BEGIN
    INSERT INTO leasehold.grave (resource, owner, ends, evicted) VALUES (r.id, whose, until, by_operator)
    ON CONFLICT (owner, resource) DO UPDATE SET ends = excluded.ends, evicted = excluded.evicted
    RETURNING xmax = 0 INTO is_new;
    IF is_new THEN
        r.graves := r.graves + 1;
    END IF;
    r.settle_at := least(r.settle_at, until);
    RETURN r;
END $$;

-- A predecessor goes, and is buried if some request of it may still come.
-- takes  the row, whose, for how many microseconds (-1: not at all)
CREATE OR REPLACE FUNCTION leasehold.depart(r leasehold.resource, whose bytea, bury bigint) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
BEGIN
    r := leasehold.stand_up(r, whose);
    r := leasehold.leave_line(r, whose, true);
    IF bury >= 0 THEN
        r := leasehold.bury(r, whose, bury, false);
    END IF;
    RETURN r;
END $$;

-- The verb `acquire`, as leasehold_core::Model has it, step by step. One call, one transaction, one round trip.
--
-- takes  resource; owner; weight, capacity; ttl and place ttl in microseconds; whether it queues when blocked; whom it
--        succeeds, if anyone, and for how long that one is buried (-1: not at all); floor (0: none); note, holder; the
--        channel on which it hears; how many may wait
-- gives  one row: the verdict. If blocked, one more for each of the three holders that end soonest.
-- fails  LH001 no token is left, LH002 the line is full
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
BEGIN
    was := leasehold.lock(claim_key, true);
    r := leasehold.settle(was);

    minted := greatest(r.last + 1, r.above + 1, claim_floor + 1, leasehold.clock(r.seen));
    IF minted >= 9007199254740992 THEN
        RAISE EXCEPTION 'no fencing token is left: they end below 2^53' USING ERRCODE = 'LH001';
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
        RAISE EXCEPTION '% wait in line already', r.places USING ERRCODE = 'LH002';
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

-- The verb `renew`, for a whole batch: holders go on holding, places are kept. Locks no resource unless a note changes,
-- so renewals and the other verbs do not wait for each other; what it locks, it locks in one order.
--
-- takes  side by side: resources, owners, ttls in microseconds, notes (null: as it is)
-- gives  a row for each, with its number from 1: kept, queued or gone; of a gone one, whether it was buried or evicted
DO $$ BEGIN
    IF to_regtype('leasehold.renewal') IS NULL THEN
        CREATE TYPE leasehold.renewal AS (
            number    bigint,
            said      text,       -- kept, queued, gone, buried, evicted
            token     bigint,
            remaining bigint,     -- microseconds
            evicting  boolean,
            asked_for bigint,     -- microseconds
            asked_by  text,
            asked_why text
        );
    END IF;
END $$;

CREATE OR REPLACE FUNCTION leasehold.renew(keys text[], owners bytea[], ttls bigint[], notes bytea[])
RETURNS SETOF leasehold.renewal
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    moment timestamptz;
    noted  leasehold.resource;
    r      leasehold.resource;
    news   text[];
BEGIN
    PERFORM leasehold.commit_durably();
    news := ARRAY(SELECT DISTINCT a.key FROM unnest(keys, notes) AS a (key, note) WHERE a.note IS NOT NULL);
    IF cardinality(news) > 0 THEN
        -- Resources before seats, as everyone does.
        PERFORM FROM leasehold.resource WHERE key = ANY (news) ORDER BY id FOR NO KEY UPDATE;
    END IF;
    moment := clock_timestamp();
    RETURN QUERY
        WITH asked AS MATERIALIZED (
            -- One may be asked for twice: each answer knows those before it.
            SELECT a.number, named.id AS resource, a.owner, leasehold.span(a.ttl) AS ttl, a.note,
                leasehold.span(max(a.ttl) OVER (PARTITION BY named.id, a.owner ORDER BY a.number)) AS so_far
            FROM unnest(keys, owners, ttls, notes) WITH ORDINALITY AS a (key, owner, ttl, note, number)
            LEFT JOIN leasehold.resource named ON named.key = a.key
        ), wished AS (
            SELECT a.resource, a.owner, max(a.ttl) AS ttl,
                (array_agg(a.note ORDER BY a.number DESC) FILTER (WHERE a.note IS NOT NULL))[1] AS note
            FROM asked a WHERE a.resource IS NOT NULL GROUP BY a.resource, a.owner
        ), locked AS (
            SELECT s.resource, s.owner, s.ends AS before, w.ttl, w.note FROM wished w
            JOIN leasehold.seat s ON s.owner = w.owner AND s.resource + 0 = w.resource
            WHERE NOT s.kept AND s.ends > moment
            ORDER BY s.resource, s.owner FOR NO KEY UPDATE OF s
        ), seats AS (
            UPDATE leasehold.seat s SET
                ends = CASE WHEN s.evicting THEN s.ends ELSE greatest(s.ends, moment + l.ttl) END,
                note = coalesce(l.note, s.note)
            FROM locked l
            -- Looked at once more: it may have ended while this waited.
            WHERE s.owner = l.owner AND s.resource + 0 = l.resource AND NOT s.kept AND s.ends > clock_timestamp()
            RETURNING s.resource, s.owner, s.token, l.before, s.evicting, s.asked_until, s.asked_by, s.asked_why
        ), kept_places AS (
            SELECT p.resource, p.owner, p.ends AS before, w.ttl FROM wished w
            JOIN leasehold.place p ON p.owner = w.owner AND p.resource + 0 = w.resource
            WHERE p.ends > moment
            ORDER BY p.resource, p.owner FOR NO KEY UPDATE OF p
        ), places AS (
            UPDATE leasehold.place p SET ends = greatest(p.ends, moment + k.ttl) FROM kept_places k
            WHERE p.owner = k.owner AND p.resource + 0 = k.resource AND p.ends > clock_timestamp()
            RETURNING p.resource, p.owner, k.before
        )
        SELECT a.number,
            CASE WHEN s.owner IS NOT NULL THEN 'kept' WHEN p.owner IS NOT NULL THEN 'queued'
                 WHEN g.evicted THEN 'evicted' WHEN g.owner IS NOT NULL THEN 'buried' ELSE 'gone' END,
            s.token,
            leasehold.micros(CASE WHEN s.evicting THEN s.before
                                  ELSE greatest(s.before, p.before, moment + a.so_far) END - moment),
            s.evicting, leasehold.micros(s.asked_until - moment), s.asked_by, s.asked_why
        FROM asked a
        LEFT JOIN seats s ON s.resource = a.resource AND s.owner = a.owner
        LEFT JOIN places p ON p.resource = a.resource AND p.owner = a.owner
        LEFT JOIN leasehold.grave g ON g.owner = a.owner AND g.resource + 0 = a.resource AND g.ends > moment
        ORDER BY a.number;
    FOR noted IN SELECT * FROM leasehold.resource WHERE key = ANY (news) ORDER BY id LOOP
        r := noted;
        r.seen := moment;
        r.version := r.version + 1;
        PERFORM leasehold.close(noted, r);
    END LOOP;
END $$;

-- The verb `release`: gives up a seat, or leaves the line.
--
-- takes  resource, owner, for how many microseconds it is buried (-1: not at all), for how many its seat stays closed
-- gives  whether it held or waited
CREATE OR REPLACE FUNCTION leasehold.release(claim_key text, claim_owner bytea, bury bigint, keep bigint)
RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was    leasehold.resource;
    r      leasehold.resource;
    until  timestamptz;
    before bigint;
BEGIN
    was := leasehold.lock(claim_key, bury >= 0);
    IF was.id IS NULL THEN
        RETURN false;
    END IF;
    r := leasehold.settle(was);
    before := r.version;
    IF keep > 0 AND r.seats > 0 THEN
        until := r.seen + leasehold.span(keep);
        UPDATE leasehold.seat SET kept = true, ends = until
        WHERE owner = claim_owner AND resource + 0 = r.id AND NOT kept;
        IF FOUND THEN
            r.version := r.version + 1;
            r.settle_at := least(r.settle_at, until);
        END IF;
    ELSE
        r := leasehold.stand_up(r, claim_owner);
    END IF;
    IF r.version = before THEN
        r := leasehold.leave_line(r, claim_owner, true);
    END IF;
    before := r.version - before;
    IF bury >= 0 THEN
        r := leasehold.bury(r, claim_owner, bury, false);
    END IF;
    PERFORM leasehold.close(was, r);
    RETURN before > 0;
END $$;

-- What a waiting claim can expect. If there is no reason to ask again, leaves word where to tell it.
--
-- takes  resource, owner, cursor, for how many microseconds at the most, the channel on which it hears
--        (empty: it polls)
-- gives  1: it should ask again; 0: it has a place and cannot move yet; 2: it has no place, and nothing changed
CREATE OR REPLACE FUNCTION leasehold.watch(
    claim_key text, claim_owner bytea, cursor bigint, at_most bigint, claim_client text
) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was   leasehold.resource;
    r     leasehold.resource;
    mine  leasehold.place;
    near  bigint;
    taken bigint;
    until timestamptz;
    news  boolean;
BEGIN
    -- A cursor of 0 is that of a resource which has no row.
    was := leasehold.lock(claim_key, cursor = 0);
    IF was.id IS NULL THEN
        RETURN 1;
    END IF;
    r := leasehold.settle(was);
    IF r.places > 0 THEN
        SELECT * INTO mine FROM leasehold.place WHERE owner = claim_owner AND resource + 0 = r.id;
    END IF;
    IF mine.owner IS NOT NULL THEN
        SELECT count(*), sum(weight) INTO near, taken
        FROM (SELECT weight FROM leasehold.place
              WHERE resource = r.id AND arrival <= mine.arrival ORDER BY arrival LIMIT 65) head;
        news := r.paused_until IS NULL AND near <= 64 AND r.held + taken <= r.capacity;
        IF mine.client <> claim_client THEN
            UPDATE leasehold.place SET client = claim_client WHERE owner = claim_owner AND resource + 0 = r.id;
        END IF;
        PERFORM leasehold.close(was, r);
        RETURN CASE WHEN news THEN 1 ELSE 0 END;
    END IF;
    -- A row that was just made is news to nobody.
    news := r.version <> cursor AND NOT (cursor = 0 AND r.last = 0 AND r.seats = 0 AND r.places = 0);
    IF NOT news AND claim_client <> '' THEN
        until := r.seen + leasehold.span(at_most);
        INSERT INTO leasehold.watcher (resource, client, ends) VALUES (r.id, claim_client, until)
        ON CONFLICT (resource, client) DO UPDATE SET ends = greatest(watcher.ends, excluded.ends);
        r.watched_until := greatest(r.watched_until, until);
    END IF;
    PERFORM leasehold.close(was, r);
    RETURN CASE WHEN news THEN 1 ELSE 2 END;
END $$;

-- The operator's verb, with its audit record in the same step.
--
-- takes  resource; the token that is meant (0: whoever is there); by whom, why; the command by its stable name; its
--        number: microseconds to ask or pause for, or the capacity to resize to
-- gives  whether it was done; the newest token there, if it was not
CREATE OR REPLACE FUNCTION leasehold.command(
    order_key text, order_token bigint, order_by text, order_why text, order_command text, number bigint,
    OUT done boolean, OUT newest bigint
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was    leasehold.resource;
    r      leasehold.resource;
    meant  leasehold.seat;
    recorded bigint;
BEGIN
    was := leasehold.lock(order_key, order_command IN ('pause', 'resume'));
    done := false;
    IF was.id IS NOT NULL THEN
        r := leasehold.settle(was);
        SELECT max(token) INTO newest FROM leasehold.seat WHERE resource = r.id;
        SELECT * INTO meant FROM leasehold.seat
        WHERE resource = r.id AND token = CASE order_token WHEN 0 THEN newest ELSE order_token END FOR UPDATE;
        IF order_token = 0 OR meant.owner IS NOT NULL THEN
            CASE order_command
            WHEN 'pause' THEN
                r.paused_until := r.seen + leasehold.span(number);
                r.settle_at := least(r.settle_at, r.paused_until);
                done := true;
            WHEN 'resume' THEN
                r.paused_until := NULL;
                done := true;
            WHEN 'resize' THEN
                done := r.seats > 0 OR r.places > 0;
                IF done THEN
                    r.capacity := number;
                END IF;
            WHEN 'ask' THEN
                UPDATE leasehold.seat SET asked_until = r.seen + leasehold.span(number), asked_by = order_by,
                    asked_why = order_why
                WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
            WHEN 'evict' THEN
                UPDATE leasehold.seat SET evicting = true WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
            WHEN 'evict-now' THEN
                DELETE FROM leasehold.seat WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
                IF done THEN
                    r.seats := r.seats - 1;
                    r.held := r.held - meant.weight;
                    -- Longer than any request of it can be under way.
                    r := leasehold.bury(r, meant.owner,
                        greatest(2 * leasehold.micros(meant.ends - r.seen), 180000000), true);
                END IF;
            END CASE;
        END IF;
        IF done THEN
            r.version := r.version + 1;
        END IF;
        PERFORM leasehold.close(was, r);
    END IF;
    INSERT INTO leasehold.audit (at, resource, command, token, by, why, done)
    VALUES (clock_timestamp(), order_key, order_command, order_token, order_by, order_why, done)
    RETURNING sequence INTO recorded;
    DELETE FROM leasehold.audit WHERE sequence <= recorded - 10000;
END $$;

INSERT INTO leasehold.meta (name, value) VALUES ('format', 1), ('revision', 1), ('forgotten', 0)
ON CONFLICT (name) DO NOTHING;
UPDATE leasehold.meta SET value = 1 WHERE name = 'revision' AND value < 1;
COMMIT;
