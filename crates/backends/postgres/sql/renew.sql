-- The verb `renew`, for a whole batch: extends seats and places.
--
-- It locks no resource unless a note changes, so renewals and the other verbs do not wait for each other. It locks seats
-- and places in the order of resource and owner, so that two renewals cannot deadlock. ADR 0021.
--
-- A claim whose place is renewed is heard. If it was called or silent, or something is due on its resource, that is carried out
-- afterwards, claim by claim (`hear`). This locks the row of the resource too, but does not wait for it: if another verb has
-- locked it, the next verb does what is due.
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

-- Notes that a claim in the queue was heard, and does what a verb does with the queue: drops what has expired, passes over
-- claims that do not answer, calls the next ones. The caller has locked the place.
CREATE OR REPLACE FUNCTION leasehold.hear(place_resource bigint, place_owner bytea) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was        leasehold.resource;
    r          leasehold.resource;
    moment     timestamptz;
    was_silent boolean;
BEGIN
    SELECT * INTO was FROM leasehold.resource WHERE id = place_resource FOR NO KEY UPDATE SKIP LOCKED;
    moment := clock_timestamp();
    SELECT silent INTO was_silent FROM leasehold.place WHERE owner = place_owner AND resource + 0 = place_resource;
    UPDATE leasehold.place SET heard_at = moment, called_at = NULL, silent = false
    WHERE owner = place_owner AND resource + 0 = place_resource;
    IF was.id IS NULL THEN
        RETURN;
    END IF;
    was.seen := moment;
    -- Something is due: the call of this claim, if of no other.
    was.look_at := '-infinity';
    r := leasehold.settle(was);
    IF was_silent THEN
        r.version := r.version + 1;
    END IF;
    r := leasehold.pass_over(r, place_owner);
    PERFORM leasehold.finish(was, r);
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
    one        record;
    answer     leasehold.renewal;
    heard      bigint[] := '{}';      -- numbers of the renewed places on whose resource something is due
    due        bigint[] := '{}';      -- these resources
BEGIN
    PERFORM leasehold.commit_durably();
    noted_keys := ARRAY(SELECT DISTINCT a.key FROM unnest(keys, notes) AS a (key, note) WHERE a.note IS NOT NULL);
    IF cardinality(noted_keys) > 0 THEN
        -- The same order of locks as in all other functions: resources before seats.
        PERFORM FROM leasehold.resource WHERE key = ANY (noted_keys) ORDER BY id FOR NO KEY UPDATE;
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
            SELECT a.resource, a.owner, max(a.ttl) AS ttl, bool_or(a.is_due) AS is_due,
                (array_agg(a.note ORDER BY a.number DESC) FILTER (WHERE a.note IS NOT NULL))[1] AS note
            FROM asked a WHERE a.resource IS NOT NULL GROUP BY a.resource, a.owner
        ), locked AS (
            SELECT s.resource, s.owner, s.ends AS before, w.ttl, w.note FROM requested w
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
            RETURNING s.resource, s.owner, s.token, l.before, s.evicting, s.asked_until, s.asked_by, s.asked_why
        ), kept_places AS (
            SELECT p.resource, p.owner, p.ends AS before, w.ttl,
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
            RETURNING p.resource, p.owner, k.before, k.is_due
        )
        SELECT a.number,
            CASE WHEN s.owner IS NOT NULL THEN 'kept' WHEN p.owner IS NOT NULL THEN 'queued'
                 WHEN g.evicted THEN 'evicted' WHEN g.owner IS NOT NULL THEN 'buried' ELSE 'gone' END AS said,
            s.token,
            leasehold.micros(CASE WHEN s.evicting THEN s.before
                                  ELSE greatest(s.before, p.before, moment + a.so_far) END - moment) AS remaining,
            s.evicting, leasehold.micros(s.asked_until - moment) AS asked_for, s.asked_by, s.asked_why, a.resource, p.is_due
        FROM asked a
        LEFT JOIN seats s ON s.resource = a.resource AND s.owner = a.owner
        LEFT JOIN places p ON p.resource = a.resource AND p.owner = a.owner
        LEFT JOIN leasehold.grave g ON g.owner = a.owner AND g.resource + 0 = a.resource AND g.ends > moment
        ORDER BY a.number
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
    FOR noted IN SELECT * FROM leasehold.resource WHERE key = ANY (noted_keys) ORDER BY id LOOP
        r := noted;
        r.seen := moment;
        r.version := r.version + 1;
        PERFORM leasehold.store(noted, r);
    END LOOP;
END $$;
