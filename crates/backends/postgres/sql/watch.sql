-- The verb `wait`: whether a waiting claim should ask again. If not, stores the channel on which to notify its client.
--
-- takes  claim_key, claim_owner
--        cursor         the version of the resource that the claim has seen; 0: the resource had no row
--        at_most        how long it waits, in microseconds
--        claim_client   the channel on which to notify the client; empty: it polls
-- gives  1: ask again; 0: it has a place in the queue and cannot be granted yet; 2: it has no place, and nothing changed
CREATE OR REPLACE FUNCTION leasehold.watch(
    claim_key text, claim_owner bytea, cursor bigint, at_most bigint, claim_client text
) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was       leasehold.resource;
    r         leasehold.resource;
    mine      leasehold.place;
    near      bigint;
    taken     bigint;
    until     timestamptz;
    ask_again boolean;
BEGIN
    -- A cursor of 0 belongs to a resource without a row: make the row, so that the watcher can be stored.
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
        ask_again := r.paused_until IS NULL AND near <= 64 AND r.held + taken <= r.capacity;
        IF mine.client <> claim_client THEN
            UPDATE leasehold.place SET client = claim_client WHERE owner = claim_owner AND resource + 0 = r.id;
        END IF;
        PERFORM leasehold.close(was, r);
        RETURN CASE WHEN ask_again THEN 1 ELSE 0 END;
    END IF;
    -- A row that this call has just made is not a change.
    ask_again := r.version <> cursor AND NOT (cursor = 0 AND r.last = 0 AND r.seats = 0 AND r.places = 0);
    IF NOT ask_again AND claim_client <> '' THEN
        until := r.seen + leasehold.span(at_most);
        INSERT INTO leasehold.watcher (resource, client, ends) VALUES (r.id, claim_client, until)
        ON CONFLICT (resource, client) DO UPDATE SET ends = greatest(watcher.ends, excluded.ends);
        r.watched_until := greatest(r.watched_until, until);
    END IF;
    PERFORM leasehold.close(was, r);
    RETURN CASE WHEN ask_again THEN 1 ELSE 2 END;
END $$;
