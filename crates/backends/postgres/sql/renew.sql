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
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
            JOIN leasehold.seat s ON s.resource = w.resource AND s.owner = w.owner
            WHERE NOT s.kept AND s.ends > moment
            ORDER BY s.resource, s.owner FOR NO KEY UPDATE OF s
        ), seats AS (
            UPDATE leasehold.seat s SET
                ends = CASE WHEN s.evicting THEN s.ends ELSE greatest(s.ends, moment + l.ttl) END,
                note = coalesce(l.note, s.note)
            FROM locked l
            -- Looked at once more: it may have ended while this waited.
            WHERE s.resource = l.resource AND s.owner = l.owner AND NOT s.kept AND s.ends > clock_timestamp()
            RETURNING s.resource, s.owner, s.token, l.before, s.evicting, s.asked_until, s.asked_by, s.asked_why
        ), kept_places AS (
            SELECT p.resource, p.arrival, p.ends AS before, w.ttl FROM wished w
            JOIN leasehold.place p ON p.resource = w.resource AND p.owner = w.owner
            WHERE p.ends > moment
            ORDER BY p.resource, p.arrival FOR NO KEY UPDATE OF p
        ), places AS (
            UPDATE leasehold.place p SET ends = greatest(p.ends, moment + k.ttl) FROM kept_places k
            WHERE p.resource = k.resource AND p.arrival = k.arrival AND p.ends > clock_timestamp()
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
        LEFT JOIN leasehold.grave g ON g.resource = a.resource AND g.owner = a.owner AND g.ends > moment
        ORDER BY a.number;
    FOR noted IN SELECT * FROM leasehold.resource WHERE key = ANY (news) ORDER BY id LOOP
        r := noted;
        r.seen := moment;
        r.version := r.version + 1;
        PERFORM leasehold.close(noted, r);
    END LOOP;
END $$;
