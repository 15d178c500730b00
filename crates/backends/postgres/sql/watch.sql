-- The verb `wait`: whether a waiting claim should ask again. If not, stores the channel on which to notify its client.
--
-- takes  claim_key, claim_owner
--        cursor         the version of the resource that the claim has seen; 0: the resource had no row
--        at_most        how long it waits, in microseconds
--        claim_client   the channel on which to notify the client; empty: it polls
--        claim_listener   the number of the lock that the client holds while it listens; null: it is not known to listen
-- gives  1: ask again; 0: it has a place in the queue, and is neither called nor silent nor can it be granted; 2: it has no
--        place, and nothing changed
CREATE OR REPLACE FUNCTION leasehold.watch(
    claim_key text, claim_owner bytea, cursor bigint, at_most bigint, claim_client text, claim_listener integer
) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was       leasehold.resource;
    r         leasehold.resource;
    mine      leasehold.place;
    near      bigint;                 -- live claims up to its own, counted up to 65
    taken     bigint;                 -- their weights
    is_live   boolean;
    is_called boolean;
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
    IF mine.owner IS NOT NULL AND (mine.client, mine.listener) IS DISTINCT FROM (claim_client, claim_listener) THEN
        UPDATE leasehold.place SET client = claim_client, listener = claim_listener
        WHERE owner = claim_owner AND resource + 0 = r.id;
    END IF;
    IF r.look_at <= r.seen THEN
        r := leasehold.pass_over(r, NULL);
    END IF;
    IF mine.owner IS NOT NULL THEN
        r := leasehold.finish(was, r);
        SELECT count(*), sum(weight), bool_or(arrival = mine.arrival), bool_or(arrival = mine.arrival AND called_at IS NOT NULL)
        INTO near, taken, is_live, is_called
        FROM (SELECT arrival, weight, called_at FROM leasehold.place
              WHERE resource + 0 = r.id AND NOT silent AND arrival <= mine.arrival ORDER BY arrival LIMIT 65) head;
        ask_again := near <= 64 AND (is_live IS NOT TRUE OR is_called
                                     OR (r.paused_until IS NULL AND r.held + taken <= r.capacity));
        RETURN CASE WHEN ask_again OR mine.silent THEN 1 ELSE 0 END;
    END IF;
    -- A row that this call has just made is not a change.
    ask_again := r.version <> cursor AND NOT (cursor = 0 AND r.last = 0 AND r.seats = 0 AND r.places = 0);
    IF NOT ask_again AND claim_client <> '' THEN
        until := r.seen + leasehold.span(at_most);
        INSERT INTO leasehold.watcher (resource, client, ends) VALUES (r.id, claim_client, until)
        ON CONFLICT (resource, client) DO UPDATE SET ends = greatest(watcher.ends, excluded.ends);
        r.watched_until := greatest(r.watched_until, until);
    END IF;
    PERFORM leasehold.finish(was, r);
    RETURN CASE WHEN ask_again THEN 1 ELSE 2 END;
END $$;
