-- The verb `release` for a batch: one statement, so one transaction and one commit for all of them. ADR 0040.
--
-- As in `acquire_many`, each request is a step of its own, and the batch never waits for a row that another transaction has
-- locked: a wait ends after 10 ms, and the batch begins anew (ADR 0067). It inserts no resources.
--
--  1. Lock the rows of the resources. Pass over those that another transaction has locked.
--  2. Carry out the plain requests in one statement: the first request for each resource that has no queue and no watcher
--     and from which nothing has expired, if the owner has a seat there, and without a tombstone or a kept seat.
--  3. Carry out the other requests with `release`, in the order of their arrival.
--
-- A client that waits is notified once, even if several requests free capacity for it: PostgreSQL sends equal notifications
-- of a transaction once.
DO $$ BEGIN
    IF to_regtype('leasehold.numbered_release') IS NULL THEN
        CREATE TYPE leasehold.numbered_release AS (
            number bigint,    -- of the request, from 1
            key    text,      -- of the request
            owner  bytea,     -- of the request
            said   text,      -- released; gone: the owner neither held nor waited; alone: not carried out
            why    text       -- alone: why it was not carried out
        );
    END IF;
END $$;

-- Carries out the steps above. An error undoes all of them.
-- takes  arrays of the same length, with an element for each request: see `release`
-- gives  one row for each request
CREATE OR REPLACE FUNCTION leasehold.release_together(keys text[], owners bytea[], burials bigint[], keeps bigint[])
RETURNS SETOF leasehold.numbered_release
LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
    locked    text[];        -- keys of the resources that this call has locked
    plain     bigint[];      -- numbers of the requests that may be plain
    plain_ids bigint[];      -- of their resources
    done      bigint[];      -- numbers of the requests that are carried out
    moment    timestamptz := clock_timestamp();
    r         leasehold.resource;
    alone     text;
BEGIN
    SELECT array_agg(l.key), array_agg(l.number) FILTER (WHERE l.is_plain), array_agg(l.id) FILTER (WHERE l.is_plain)
    INTO locked, plain, plain_ids
    FROM (SELECT stored.key, a.number, stored.id,
              stored.seats > 0 AND stored.places = 0 AND stored.watched_until <= moment AND stored.settle_at > clock_timestamp()
                  AND a.bury < 0 AND a.keep <= 0 AS is_plain
          FROM unnest(keys, burials, keeps) WITH ORDINALITY AS a (key, bury, keep, number)
          JOIN leasehold.resource stored ON stored.key = a.key
          WHERE array_position(keys, a.key) = a.number
          ORDER BY stored.key FOR NO KEY UPDATE OF stored SKIP LOCKED) l;
    locked := coalesce(locked, '{}');
    moment := clock_timestamp();

    WITH free AS (
        -- A renewal may have locked the seat: then the request is not plain.
        SELECT p.number, s.owner, s.resource
        FROM unnest(plain, plain_ids) AS p (number, id)
        JOIN leasehold.seat s ON s.owner = owners[p.number] AND s.resource + 0 = p.id
        WHERE NOT s.kept FOR UPDATE OF s SKIP LOCKED
    ), seats AS (
        DELETE FROM leasehold.seat s USING free f WHERE s.owner = f.owner AND s.resource + 0 = f.resource
        RETURNING f.number, s.resource, s.weight
    ), resources AS (
        UPDATE leasehold.resource stored SET held = stored.held - s.weight, seats = stored.seats - 1, version = stored.version + 1, seen = moment
        FROM seats s WHERE stored.id = s.resource
    )
    SELECT array_agg(s.number) INTO done FROM seats s;
    done := coalesce(done, '{}');
    RETURN QUERY SELECT d.number, keys[d.number], owners[d.number], 'released', NULL FROM unnest(done) AS d (number);

    FOR number IN 1 .. CASE WHEN cardinality(done) < cardinality(keys) THEN cardinality(keys) ELSE 0 END LOOP
        CONTINUE WHEN number = ANY (done);
        alone := NULL;
        SELECT * INTO r FROM leasehold.resource WHERE key = keys[number];
        IF NOT FOUND THEN
            -- Only a tombstone needs a row, and only a request alone inserts one.
            alone := CASE WHEN burials[number] >= 0 THEN 'missing' END;
        ELSIF keys[number] <> ALL (locked) THEN
            alone := 'locked';
        ELSE
            IF r.seats > 0 THEN
                PERFORM FROM leasehold.seat WHERE owner = owners[number] AND resource + 0 = r.id FOR UPDATE SKIP LOCKED;
                IF NOT FOUND AND EXISTS (
                    SELECT FROM leasehold.seat WHERE owner = owners[number] AND resource + 0 = r.id)
                THEN
                    alone := 'locked';
                END IF;
            END IF;
            IF r.places > 0 THEN
                PERFORM FROM leasehold.place WHERE owner = owners[number] AND resource + 0 = r.id FOR UPDATE SKIP LOCKED;
                IF NOT FOUND AND EXISTS (
                    SELECT FROM leasehold.place WHERE owner = owners[number] AND resource + 0 = r.id)
                THEN
                    alone := 'locked';
                END IF;
            END IF;
        END IF;
        IF alone IS NOT NULL THEN
            locked := array_remove(locked, keys[number]);
            RETURN QUERY SELECT number::bigint, keys[number], owners[number], 'alone', alone;
        ELSIF r.id IS NOT NULL AND leasehold.release(keys[number], owners[number], burials[number], keeps[number]) THEN
            RETURN QUERY SELECT number::bigint, keys[number], owners[number], 'released', NULL;
        ELSE
            RETURN QUERY SELECT number::bigint, keys[number], owners[number], 'gone', NULL;
        END IF;
    END LOOP;
END $$;

-- The batch. It begins anew if it would have to wait for a lock. If a request causes another error, all are answered `alone`:
-- see `acquire_many`.
CREATE OR REPLACE FUNCTION leasehold.release_many(keys text[], owners bytea[], burials bigint[], keeps bigint[])
RETURNS SETOF leasehold.numbered_release
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    failed text;
BEGIN
    PERFORM leasehold.commit_durably();
    FOR attempt IN 1 .. 3 LOOP
        BEGIN
            RETURN QUERY SELECT * FROM leasehold.release_together(keys, owners, burials, keeps);
            RETURN;
        EXCEPTION
            WHEN lock_not_available THEN
                failed := 'locked';
            WHEN OTHERS THEN
                failed := SQLSTATE || ' ' || SQLERRM;
                EXIT;
        END;
    END LOOP;
    RETURN QUERY SELECT a.number, a.key, a.owner, 'alone', failed
        FROM unnest(keys, owners) WITH ORDINALITY AS a (key, owner, number);
END $$;

-- `release` for a request that was answered `alone`. As `acquire_soon`, it does not wait for locked rows for long.
-- takes  patience   how long it waits for a lock, in milliseconds
--        the others: as in `release`
-- gives  released, gone, or locked if the time was too short, and nothing was carried out
CREATE OR REPLACE FUNCTION leasehold.release_soon(
    claim_key text, claim_owner bytea, bury bigint, keep bigint, patience bigint
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    limit_before text := current_setting('lock_timeout');
    was_there    boolean;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    was_there := leasehold.release(claim_key, claim_owner, bury, keep);
    -- The commit takes a lock too, for its notifications: it may wait. ADR 0067.
    PERFORM set_config('lock_timeout', limit_before, true);
    RETURN CASE WHEN was_there THEN 'released' ELSE 'gone' END;
EXCEPTION WHEN lock_not_available THEN
    RETURN 'locked';
END $$;
