-- The verb `renew`, for a whole batch: extends seats and places.
--
-- It locks no resource unless a note changes, so renewals and the other verbs do not wait for each other. It locks seats
-- and places in the order of resource and owner, so that two renewals cannot deadlock. ADR 0021.
--
-- A claim whose place is renewed is heard. If it was called or silent, or something is due on its resource, that is carried out
-- afterwards, claim by claim (`hear`). This locks the row of the resource too, but does not wait for it: if another verb has
-- locked it, the next verb does what is due. As in `acquire_many`, SKIP LOCKED alone does not ensure that (ADR 0067).
--
-- takes  four arrays of the same length: keys, owners, ttls in microseconds, notes (null: leave the note as it is)
-- gives  one row for each, numbered from 1: kept, queued or gone; if it is gone and has a tombstone, buried or evicted
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

-- Does what a verb does with the queue: drops what has expired, passes over claims that do not answer, calls the next ones.
-- Does nothing if another verb has locked the row of the resource. Fails with lock_not_available if it would have to wait.
-- takes  place_resource, place_owner   the claim that was heard
--        was_silent                    whether it was silent before
CREATE OR REPLACE FUNCTION leasehold.look_after(place_resource bigint, place_owner bytea, was_silent boolean) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
    was leasehold.resource;
    r   leasehold.resource;
BEGIN
    SELECT * INTO was FROM leasehold.resource WHERE id = place_resource FOR NO KEY UPDATE SKIP LOCKED;
    IF was.id IS NULL THEN
        RETURN;
    END IF;
    was.seen := clock_timestamp();
    -- Something is due: the call of this claim, if of no other.
    was.look_at := '-infinity';
    r := leasehold.settle(was);
    IF was_silent THEN
        r.version := r.version + 1;
    END IF;
    r := leasehold.pass_over(r, place_owner);
    PERFORM leasehold.finish(was, r);
END $$;

-- Notes that a claim in the queue was heard, and looks after its queue. The caller has locked the place.
CREATE OR REPLACE FUNCTION leasehold.hear(place_resource bigint, place_owner bytea) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was_silent boolean;
BEGIN
    SELECT silent INTO was_silent FROM leasehold.place WHERE owner = place_owner AND resource + 0 = place_resource;
    UPDATE leasehold.place SET heard_at = clock_timestamp(), called_at = NULL, silent = false
    WHERE owner = place_owner AND resource + 0 = place_resource;
    PERFORM leasehold.look_after(place_resource, place_owner, was_silent);
EXCEPTION WHEN lock_not_available THEN
    -- The next verb on the resource does the rest.
    UPDATE leasehold.place SET heard_at = clock_timestamp(), called_at = NULL, silent = false
    WHERE owner = place_owner AND resource + 0 = place_resource;
END $$;

CREATE OR REPLACE FUNCTION leasehold.renew(keys text[], owners bytea[], ttls bigint[], notes bytea[])
RETURNS SETOF leasehold.renewal
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    moment     timestamptz;
    noted      leasehold.resource;
    r          leasehold.resource;
    noted_keys text[];
    noted_ids  bigint[] := '{}';      -- resources whose row this call has locked, because of a note
    one        record;
    answer     leasehold.renewal;
    heard      bigint[] := '{}';      -- numbers of the renewed places on whose resource something is due
    due        bigint[] := '{}';      -- these resources
BEGIN
    PERFORM leasehold.commit_durably();
    noted_keys := ARRAY(SELECT DISTINCT a.key FROM unnest(keys, notes) AS a (key, note) WHERE a.note IS NOT NULL);
    IF cardinality(noted_keys) > 0 THEN
        -- The same order of locks as in all other functions: resources before seats, by their keys.
        noted_ids := ARRAY(
            SELECT l.id FROM (SELECT id FROM leasehold.resource WHERE key = ANY (noted_keys) ORDER BY key FOR NO KEY UPDATE) l
        );
    END IF;
    moment := clock_timestamp();
    FOR one IN
        WITH asked AS MATERIALIZED (
            -- A batch can name a claim twice. Each row then counts the ttls of the earlier rows for the same claim, too.
            SELECT a.number, named.id AS resource, a.owner, leasehold.span(a.ttl) AS ttl, a.note,
                named.look_at <= moment OR named.settle_at <= moment AS is_due,
                leasehold.span(max(a.ttl) OVER (PARTITION BY named.id, a.owner ORDER BY a.number)) AS so_far
            FROM unnest(keys, owners, ttls, notes) WITH ORDINALITY AS a (key, owner, ttl, note, number)
            LEFT JOIN leasehold.resource named ON named.key = a.key
        ), requested AS (
            SELECT a.resource, a.owner, array_agg(a.number) AS numbers, max(a.ttl) AS ttl, bool_or(a.is_due) AS is_due,
                (array_agg(a.note ORDER BY a.number DESC) FILTER (WHERE a.note IS NOT NULL))[1] AS note
            FROM asked a WHERE a.resource IS NOT NULL GROUP BY a.resource, a.owner
        ), locked AS (
            SELECT s.resource, s.owner, w.numbers, s.ends AS before, w.ttl, w.note FROM requested w
            JOIN leasehold.seat s ON s.owner = w.owner AND s.resource + 0 = w.resource
            WHERE NOT s.kept AND s.ends > moment
            ORDER BY s.resource, s.owner FOR NO KEY UPDATE OF s
        ), seats AS (
            UPDATE leasehold.seat s SET
                ends = CASE WHEN s.evicting THEN s.ends ELSE greatest(s.ends, moment + l.ttl) END,
                note = coalesce(l.note, s.note)
            FROM locked l
            -- Checked once more: the seat may have expired while this statement waited for its lock.
            WHERE s.owner = l.owner AND s.resource + 0 = l.resource AND NOT s.kept AND s.ends > clock_timestamp()
            RETURNING l.numbers, s.token, l.before, s.evicting, s.asked_until, s.asked_by, s.asked_why
        ), kept_places AS (
            SELECT p.resource, p.owner, w.numbers, p.ends AS before, w.ttl,
                w.is_due OR p.called_at IS NOT NULL OR p.silent AS is_due
            FROM requested w
            JOIN leasehold.place p ON p.owner = w.owner AND p.resource + 0 = w.resource
            WHERE p.ends > moment
            ORDER BY p.resource, p.owner FOR NO KEY UPDATE OF p
        ), places AS (
            UPDATE leasehold.place p SET ends = greatest(p.ends, moment + k.ttl),
                heard_at = CASE WHEN k.is_due THEN p.heard_at ELSE moment END
            FROM kept_places k
            WHERE p.owner = k.owner AND p.resource + 0 = k.resource AND p.ends > clock_timestamp()
            RETURNING k.numbers, k.before, k.is_due
        ),
        -- What is known of each request, from up to three sides. They are put together by grouping: nested loops, the only joins that
        -- this function allows, would compare every request with every seat.
        known AS (
            SELECT a.number, a.resource, a.so_far, g.owner IS NOT NULL AS buried, g.evicted,
                NULL::bigint AS token, NULL::timestamptz AS seat_end, NULL::boolean AS evicting,
                NULL::timestamptz AS asked_until, NULL AS asked_by, NULL AS asked_why,
                NULL::timestamptz AS place_end, NULL::boolean AS is_due
            FROM asked a
            LEFT JOIN leasehold.grave g ON g.owner = a.owner AND g.resource + 0 = a.resource AND g.ends > moment
            UNION ALL
            SELECT unnest(s.numbers), NULL, NULL, NULL, NULL,
                s.token, s.before, s.evicting, s.asked_until, s.asked_by, s.asked_why, NULL, NULL
            FROM seats s
            UNION ALL
            SELECT unnest(p.numbers), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p.before, p.is_due
            FROM places p
        ), joined AS (
            SELECT k.number, max(k.resource) AS resource, max(k.so_far) AS so_far, bool_or(k.buried) AS buried,
                bool_or(k.evicted) AS evicted, max(k.token) AS token, max(k.seat_end) AS seat_end,
                bool_or(k.evicting) AS evicting, max(k.asked_until) AS asked_until, max(k.asked_by) AS asked_by,
                max(k.asked_why) AS asked_why, max(k.place_end) AS place_end, bool_or(k.is_due) AS is_due
            FROM known k GROUP BY k.number
        )
        SELECT j.number,
            CASE WHEN j.seat_end IS NOT NULL THEN 'kept' WHEN j.place_end IS NOT NULL THEN 'queued'
                 WHEN j.evicted THEN 'evicted' WHEN j.buried THEN 'buried' ELSE 'gone' END AS said,
            j.token,
            leasehold.micros(CASE WHEN j.evicting THEN j.seat_end
                                  ELSE greatest(j.seat_end, j.place_end, moment + j.so_far) END - moment) AS remaining,
            j.evicting, leasehold.micros(j.asked_until - moment) AS asked_for, j.asked_by, j.asked_why, j.resource, j.is_due
        FROM joined j
        ORDER BY j.number
    LOOP
        answer := (one.number, one.said, one.token, one.remaining, one.evicting, one.asked_for, one.asked_by, one.asked_why);
        RETURN NEXT answer;
        IF one.is_due THEN
            heard := heard || one.number;
            due := due || one.resource;
        END IF;
    END LOOP;
    FOR number IN 1 .. cardinality(heard) LOOP
        PERFORM leasehold.hear(due[number], owners[heard[number]]);
    END LOOP;
    -- Not those with the same keys that were inserted meanwhile: they are not locked, so their values may be old when they are written.
    FOR noted IN SELECT * FROM leasehold.resource WHERE id = ANY (noted_ids) ORDER BY id LOOP
        r := noted;
        r.seen := moment;
        r.version := r.version + 1;
        PERFORM leasehold.store(noted, r);
    END LOOP;
END $$;
