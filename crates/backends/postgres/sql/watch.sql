-- What a waiting claim can expect. If there is no reason to ask again, leaves word where to tell it.
--
-- takes  resource, owner, cursor, for how many microseconds at the most, the channel on which it hears
--        (empty: it polls)
-- gives  1: it should ask again; 0: it has a place and cannot move yet; 2: it has no place, and nothing changed
CREATE OR REPLACE FUNCTION leasehold.watch(
    claim_key text, claim_owner bytea, cursor bigint, at_most bigint, claim_client text
) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
        SELECT * INTO mine FROM leasehold.place WHERE resource = r.id AND owner = claim_owner;
    END IF;
    IF mine.owner IS NOT NULL THEN
        SELECT count(*), sum(weight) INTO near, taken
        FROM (SELECT weight FROM leasehold.place
              WHERE resource = r.id AND arrival <= mine.arrival ORDER BY arrival LIMIT 65) head;
        news := r.paused_until IS NULL AND near <= 64 AND r.held + taken <= r.capacity;
        IF mine.client <> claim_client THEN
            UPDATE leasehold.place SET client = claim_client WHERE resource = r.id AND arrival = mine.arrival;
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
