-- The verb `release`: gives up a seat, or leaves the queue.
--
-- takes  claim_key, claim_owner
--        bury   how long the owner gets a tombstone, in microseconds; -1: none
--        keep   how long the seat stays closed to others, in microseconds; 0: not at all
-- gives  whether the owner held the resource or waited for it
CREATE OR REPLACE FUNCTION leasehold.release(claim_key text, claim_owner bytea, bury bigint, keep bigint)
RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was    leasehold.resource;
    r      leasehold.resource;
    until  timestamptz;
    before bigint;
    freed  bigint;
BEGIN
    was := leasehold.lock(claim_key, bury >= 0);
    IF was.id IS NULL THEN
        RETURN false;
    END IF;
    -- The plain case: nobody waits or watches, nothing has expired. The steps below would do the same.
    IF bury < 0 AND keep <= 0 AND was.seats > 0 AND was.places = 0 AND was.watched_until <= was.seen
        AND was.settle_at > was.seen
    THEN
        DELETE FROM leasehold.seat WHERE owner = claim_owner AND resource + 0 = was.id AND NOT kept
        RETURNING weight INTO freed;
        IF FOUND THEN
            UPDATE leasehold.resource SET held = was.held - freed, seats = was.seats - 1, version = was.version + 1,
                seen = was.seen
            WHERE id = was.id;
        END IF;
        RETURN FOUND;
    END IF;
    r := leasehold.settle(was);
    IF r.look_at <= r.seen THEN
        r := leasehold.pass_over(r, NULL);
    END IF;
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
    PERFORM leasehold.finish(was, r);
    RETURN before > 0;
END $$;
