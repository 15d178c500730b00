-- Functions that the verbs share: lock the row of a resource, drop what has expired, pass over claims that do not answer, call
-- the next ones, write the row back, notify clients. Functions take the row as a value and return the changed value. Its column
-- `seen` is the time at which the verb runs.
--
-- Every read here uses one certain index, and is written so that the planner can choose no other: by owner (`resource + 0`
-- hides the resource from the other indexes), by `resource + 0` with `silent` or `NOT silent` (the indexes for these), or by
-- resource in the order of an index. A table that was empty a moment ago has no statistics, and the planner would otherwise
-- read or sort a whole queue of ten thousand rows for each claim.

-- An interval in microseconds; zero if it is negative, null if it is null.
CREATE OR REPLACE FUNCTION leasehold.micros(span interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN span IS NOT NULL THEN greatest(0, (extract(epoch FROM span) * 1000000)::bigint) END
$$;

-- A time as a fencing token: microseconds since 1970.
CREATE OR REPLACE FUNCTION leasehold.clock(moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT (extract(epoch FROM moment) * 1000000)::bigint $$;

-- Microseconds as an interval.
CREATE OR REPLACE FUNCTION leasehold.span(micros bigint) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$ SELECT micros * interval '1 microsecond' $$;

-- Makes the commit of this transaction durable, whatever `synchronous_commit` is otherwise. A lost commit would be a grant
-- that is given twice, or a renewal that never happened.
CREATE OR REPLACE FUNCTION leasehold.commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Whether nobody holds a resource, waits for it or watches it, and nothing else restricts who may have it.
CREATE OR REPLACE FUNCTION leasehold.is_free(r leasehold.resource, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT r.seats = 0 AND r.places = 0 AND r.graves = 0 AND r.paused_until IS NULL AND r.watched_until <= moment
$$;

-- Why a resource has no next token for a claim: the SQLSTATE of the error, or null. The same rule as FencingToken::mint: a
-- floor may be at most 366 days ahead of the clock, unless the resource has had such a token already.
-- takes  r, floor
--        clock   the time as a token
CREATE OR REPLACE FUNCTION leasehold.refusal(r leasehold.resource, floor bigint, clock bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN floor > greatest(r.last, r.above) AND floor > clock + 31622400000000 THEN 'LH003'
                WHEN greatest(r.last + 1, r.above + 1, floor + 1, clock) >= 9007199254740992 THEN 'LH001' END
$$;

-- Deletes rows of resources that were not used for an hour: looks at eight rows, from a random id on, for every new row. So
-- idle rows stay a small part of the table, and no index on a changing time is needed to find them. The highest token of
-- the deleted rows is stored in `meta` as `forgotten`, and new rows begin above it. That number is rounded up by a minute,
-- so that it is seldom written.
--
-- It waits for no lock: a batch of claims calls it while it has locked other resources (ADR 0040).
-- takes  newest   the id of the newest row
--        looks    how many rows it looks at
CREATE OR REPLACE FUNCTION leasehold.sweep(newest bigint, looks bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment   timestamptz := clock_timestamp();
    old      timestamptz := moment - interval '1 hour';
    near     bigint[];
    idle_ids bigint[];
    seats    tid[];
    places   tid[];
    top      bigint;
BEGIN
    near := ARRAY(SELECT id FROM leasehold.resource
                  WHERE id > (random() * newest)::bigint - 1 AND id < newest ORDER BY id LIMIT looks);
    SELECT array_agg(idle.id), max(greatest(idle.last, idle.above)) INTO idle_ids, top FROM (
        SELECT id, last, above FROM leasehold.resource r
        WHERE id = ANY (near) AND seen < old AND last < leasehold.clock(old) AND watched_until <= moment
          AND (paused_until IS NULL OR paused_until <= moment)
          AND NOT EXISTS (SELECT FROM leasehold.seat WHERE resource = r.id AND ends > moment)
          AND NOT EXISTS (SELECT FROM leasehold.place WHERE resource = r.id AND ends > moment)
          AND NOT EXISTS (SELECT FROM leasehold.grave WHERE resource = r.id AND ends > moment)
        FOR UPDATE SKIP LOCKED) idle;
    IF idle_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM leasehold.meta WHERE name = 'forgotten' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A renewal may have locked expired seats and places. Leave their resources for the next time.
    seats := ARRAY(SELECT ctid FROM leasehold.seat WHERE resource = ANY (idle_ids) FOR UPDATE SKIP LOCKED);
    places := ARRAY(SELECT ctid FROM leasehold.place WHERE resource = ANY (idle_ids) FOR UPDATE SKIP LOCKED);
    idle_ids := ARRAY(SELECT idle.id FROM unnest(idle_ids) AS idle (id)
                      WHERE NOT EXISTS (SELECT FROM leasehold.seat WHERE resource = idle.id AND ctid <> ALL (seats))
                        AND NOT EXISTS (SELECT FROM leasehold.place WHERE resource = idle.id AND ctid <> ALL (places)));
    DELETE FROM leasehold.seat WHERE resource = ANY (idle_ids);
    DELETE FROM leasehold.place WHERE resource = ANY (idle_ids);
    DELETE FROM leasehold.grave WHERE resource = ANY (idle_ids);
    DELETE FROM leasehold.watcher WHERE resource = ANY (idle_ids);
    DELETE FROM leasehold.resource WHERE id = ANY (idle_ids);
    UPDATE leasehold.meta SET value = top + 60000000 WHERE name = 'forgotten' AND value < top;
END $$;

-- Locks the row of a resource until the end of the transaction.
-- takes  wanted   the key
--        make     whether to make the row if there is none
-- gives  the row; a row of nulls if there is none
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
            -- Read after the insert: it may have waited for a sweep that deleted an earlier row of this key.
            SELECT value INTO r.above FROM leasehold.meta WHERE name = 'forgotten';
            r.above := coalesce(r.above, 0);
            UPDATE leasehold.resource SET above = r.above WHERE id = r.id AND above <> r.above;
            PERFORM leasehold.sweep(r.id, 8);
            EXIT;
        END IF;
    END LOOP;
    -- Read the clock only now: waiting for the row takes time.
    IF r.id IS NOT NULL THEN
        r.seen := clock_timestamp();
    END IF;
    RETURN r;
END $$;

-- Deletes the expired seats, places and tombstones of a resource. Skips rows that a renewal has locked: the renewal decides
-- about them, and neither side waits (ADR 0021).
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

-- The class of the advisory locks of listeners. A client that listens holds the lock (class, number) with a random number of
-- its own, exclusively, for as long as its session lasts. These locks have two numbers of 32 bits, so they cannot meet locks
-- with one number of 64 bits; the class is the beginning of the MD5 sum of a text with the name of the schema.
CREATE OR REPLACE FUNCTION leasehold.listener_class() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x' || left(md5('leasehold.listener'), 8))::bit(32)::integer $$;

-- Makes those places silent that were called and did not answer within a second, and the places of the same client that
-- were not heard for as long. Skips places that a renewal has locked: those are answering. The same as
-- Queue::pass_over_silent: late are claims among the first 64, and others of their clients among the first 256.
-- takes  r
--        asker   the owner whose request is carried out, and who is therefore heard; or null
CREATE OR REPLACE FUNCTION leasehold.pass_over(r leasehold.resource, asker bytea) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    deadline timestamptz := r.seen - interval '1 second';   -- who was called at this time or before is late
    late     bytea[];                                       -- owners
    clients  bigint[];
    changed  bigint;
BEGIN
    IF r.places = 0 OR r.look_at > r.seen THEN
        RETURN r;
    END IF;
    SELECT array_agg(owner), array_agg(client_id) INTO late, clients
    FROM (SELECT owner, called_at, client_id FROM leasehold.place
          WHERE resource + 0 = r.id AND NOT silent ORDER BY arrival LIMIT 64) near
    WHERE called_at <= deadline AND owner IS DISTINCT FROM asker;
    IF late IS NOT NULL THEN
        late := late || ARRAY(
            SELECT owner FROM (SELECT owner, heard_at, client_id FROM leasehold.place
                                 WHERE resource + 0 = r.id AND NOT silent ORDER BY arrival LIMIT 256) near
            WHERE client_id = ANY (clients) AND heard_at <= deadline AND owner IS DISTINCT FROM asker);
        WITH free AS (
            SELECT owner FROM leasehold.place
            WHERE owner = ANY (late) AND resource + 0 = r.id AND (called_at <= deadline OR heard_at <= deadline)
            FOR UPDATE SKIP LOCKED
        )
        UPDATE leasehold.place p SET silent = true FROM free WHERE p.owner = free.owner AND p.resource + 0 = r.id;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed > 0 THEN
            r.version := r.version + 1;
        END IF;
    END IF;
    r.look_at := (
        SELECT coalesce(min(called_at) + interval '1 second', 'infinity')
        FROM (SELECT owner, called_at FROM leasehold.place
              WHERE resource + 0 = r.id AND NOT silent ORDER BY arrival LIMIT 64) near
        WHERE owner IS DISTINCT FROM asker);
    RETURN r;
END $$;

-- Calls the claims that can be granted now: notes the time and notifies their clients. The same as Queue::call, with one step
-- more:
--
--  1. Go through the live claims from the head, while they fit the capacity, at most 64.
--  2. While a claim is silent, go on through all 64, and call those too that were not heard for a second.
--  3. If a claim that is to be called, or was called and has not answered, said that its client listens, and the lock of that
--     listener is free, the client is gone: the claim is silent at once, and the next one is looked at. At most 256 claims.
--
-- It tries the lock (pg_try_advisory_xact_lock_shared) instead of reading pg_locks: that is one lookup in a hash table,
-- and pg_locks copies all locks of the server. If the lock is free, it is kept until the transaction ends. Nobody waits for
-- it: the number of a listener is never used again.
--
-- NOTIFY takes a lock of the whole database at the commit, so it is used only where it is needed. A client that polls has
-- no channel.
CREATE OR REPLACE FUNCTION leasehold.call(r leasehold.resource) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    one     record;
    live    bigint := 0;             -- the claims that were looked at and are not silent
    taken   bigint := r.held;
    fits    boolean := true;
    called  bytea[] := '{}';         -- owners
    gone    bytea[] := '{}';
    changed bigint;
BEGIN
    FOR one IN SELECT owner, weight, client, listener, heard_at, called_at FROM leasehold.place
               WHERE resource + 0 = r.id AND NOT silent ORDER BY arrival LIMIT 320
    LOOP
        EXIT WHEN live = 64;
        taken := taken + one.weight;
        IF fits AND taken > r.capacity THEN
            fits := false;
            EXIT WHEN live = 0 OR NOT (
                cardinality(gone) > 0 OR EXISTS (SELECT FROM leasehold.place WHERE resource + 0 = r.id AND silent));
        END IF;
        IF one.called_at IS NULL AND NOT fits AND one.heard_at > r.seen - interval '1 second' THEN
            r.look_at := least(r.look_at, one.heard_at + interval '1 second');
        ELSIF cardinality(gone) < 256 AND pg_try_advisory_xact_lock_shared(leasehold.listener_class(), one.listener) THEN
            gone := gone || one.owner;
            taken := taken - one.weight;
            CONTINUE;
        ELSIF one.called_at IS NOT NULL THEN
            r.look_at := least(r.look_at, one.called_at + interval '1 second');
        ELSE
            called := called || one.owner;
            IF one.client <> '' THEN
                PERFORM pg_notify(one.client, encode(substr(one.owner, 1, 4), 'hex') || '|' || r.key);
            END IF;
        END IF;
        live := live + 1;
    END LOOP;
    called := called || gone;
    IF cardinality(called) > 0 THEN
        WITH free AS (
            SELECT owner FROM leasehold.place WHERE owner = ANY (called) AND resource + 0 = r.id FOR UPDATE SKIP LOCKED
        )
        UPDATE leasehold.place p SET called_at = r.seen, silent = p.owner = ANY (gone) FROM free
        WHERE p.owner = free.owner AND p.resource + 0 = r.id;
        GET DIAGNOSTICS changed = ROW_COUNT;
        r.version := r.version + 1;
        -- A place that a renewal has locked was notified, and is called by the next verb.
        r.look_at := least(r.look_at,
            CASE WHEN changed < cardinality(called) THEN r.seen ELSE r.seen + interval '1 second' END);
    END IF;
    RETURN r;
END $$;

-- Writes the row back if it changed, and notifies watchers, which want to know of every change.
-- takes  was   the row as it was locked
--        r     the row as it is to be
CREATE OR REPLACE FUNCTION leasehold.store(was leasehold.resource, r leasehold.resource) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    notified record;
BEGIN
    IF r.version <> was.version AND r.watched_until > r.seen THEN
        FOR notified IN DELETE FROM leasehold.watcher WHERE resource = r.id RETURNING client LOOP
            PERFORM pg_notify(notified.client, '*|' || r.key);
        END LOOP;
        r.watched_until := '-infinity';
    END IF;
    IF (r.version, r.capacity, r.settle_at, r.graves, r.watched_until, r.look_at)
        IS DISTINCT FROM (was.version, was.capacity, was.settle_at, was.graves, was.watched_until, was.look_at)
    THEN
        UPDATE leasehold.resource SET capacity = r.capacity, held = r.held, seats = r.seats, places = r.places,
            graves = r.graves, settle_at = r.settle_at, paused_until = r.paused_until, last = r.last,
            version = r.version, watched_until = r.watched_until, seen = r.seen, look_at = r.look_at
        WHERE id = r.id;
    END IF;
END $$;

-- What every verb ends with: calls the claims that can be granted now, writes the row back, notifies watchers. A claim that
-- could be granted before was called then, so claims are looked at only if capacity was freed or `look_at` has come.
-- takes  was   the row as it was locked
--        r     the row as it is to be
-- gives  the row as it is now
CREATE OR REPLACE FUNCTION leasehold.finish(was leasehold.resource, r leasehold.resource) RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
BEGIN
    IF r.places > 0 AND r.held < r.capacity AND r.paused_until IS NULL
        AND (r.held < was.held OR r.places < was.places OR r.capacity <> was.capacity OR was.paused_until IS NOT NULL
             OR was.look_at <= r.seen)
    THEN
        r := leasehold.call(r);
    END IF;
    PERFORM leasehold.store(was, r);
    RETURN r;
END $$;

-- Removes the seat of an owner, unless it was released already and is kept.
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

-- Removes the place of an owner in the queue, if it has one. With `tell` its client is notified, because it may be waiting.
CREATE OR REPLACE FUNCTION leasehold.leave_line(r leasehold.resource, whose bytea, tell boolean)
RETURNS leasehold.resource
LANGUAGE plpgsql AS $$
DECLARE
    channel text;
BEGIN
    IF r.places > 0 THEN
        DELETE FROM leasehold.place WHERE owner = whose AND resource + 0 = r.id RETURNING client INTO channel;
        IF FOUND THEN
            r.places := r.places - 1;
            r.version := r.version + 1;
            IF tell AND channel <> '' THEN
                PERFORM pg_notify(channel, encode(substr(whose, 1, 4), 'hex') || '|' || r.key);
            END IF;
        END IF;
    END IF;
    RETURN r;
END $$;

-- Stores a tombstone: later requests of this owner are refused.
-- takes  r, whose
--        keep          for how many microseconds
--        by_operator   whether an operator evicted the owner
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

-- Removes a predecessor, and stores a tombstone if a request of it may still be under way.
-- takes  r, whose
--        bury   for how many microseconds; -1: no tombstone
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
