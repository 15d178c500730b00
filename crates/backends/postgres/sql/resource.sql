-- What the verbs share: locking the row of a resource, dropping what has ended, writing it back, telling whom that
-- concerns. A row travels as a value; `seen` is the moment at which its verb is executed.

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
            SELECT owner FROM leasehold.seat WHERE resource = r.id AND ends <= r.seen FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM leasehold.seat s USING ended WHERE s.resource = r.id AND s.owner = ended.owner
            RETURNING s.weight
        )
        SELECT count(*), coalesce(sum(weight), 0) INTO gone, weights FROM deleted;
        r.seats := r.seats - gone;
        r.held := r.held - weights;
        r.version := r.version + gone;
    END IF;
    IF r.places > 0 THEN
        WITH ended AS (
            SELECT owner FROM leasehold.place WHERE resource = r.id AND ends <= r.seen FOR UPDATE SKIP LOCKED
        ), deleted AS (
            DELETE FROM leasehold.place p USING ended WHERE p.resource = r.id AND p.owner = ended.owner
            RETURNING p.client
        )
        SELECT count(*), array_agg(DISTINCT client) FILTER (WHERE client <> '') INTO gone, clients FROM deleted;
        r.places := r.places - gone;
        r.version := r.version + gone;
        PERFORM pg_notify(client, '!|' || r.key) FROM unnest(clients) AS client;
    END IF;
    IF r.graves > 0 THEN
        DELETE FROM leasehold.grave WHERE resource = r.id AND ends <= r.seen;
        GET DIAGNOSTICS gone = ROW_COUNT;
        r.graves := r.graves - gone;
    END IF;
    IF r.paused_until <= r.seen THEN
        r.paused_until := NULL;
        r.version := r.version + 1;
    END IF;
    r.settle_at := least(
        coalesce((SELECT min(ends) FROM leasehold.seat WHERE resource = r.id), 'infinity'),
        coalesce((SELECT min(ends) FROM leasehold.place WHERE resource = r.id), 'infinity'),
        coalesce((SELECT min(ends) FROM leasehold.grave WHERE resource = r.id), 'infinity'),
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
        DELETE FROM leasehold.seat WHERE resource = r.id AND owner = whose AND NOT kept RETURNING weight INTO freed;
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
        DELETE FROM leasehold.place WHERE resource = r.id AND owner = whose RETURNING client INTO hears;
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
    ON CONFLICT (resource, owner) DO UPDATE SET ends = excluded.ends, evicted = excluded.evicted
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
