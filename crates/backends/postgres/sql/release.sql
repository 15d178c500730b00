-- The verb `release`: gives up a seat, or leaves the line.
--
-- takes  resource, owner, for how many microseconds it is buried (-1: not at all), for how many its seat stays closed
-- gives  whether it held or waited
CREATE OR REPLACE FUNCTION leasehold.release(claim_key text, claim_owner bytea, bury bigint, keep bigint)
RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    was    leasehold.resource;
    r      leasehold.resource;
    until  timestamptz;
    before bigint;
BEGIN
    was := leasehold.lock(claim_key, bury >= 0);
    IF was.id IS NULL THEN
        RETURN false;
    END IF;
    r := leasehold.settle(was);
    before := r.version;
    IF keep > 0 AND r.seats > 0 THEN
        until := r.seen + leasehold.span(keep);
        UPDATE leasehold.seat SET kept = true, ends = until
        WHERE resource = r.id AND owner = claim_owner AND NOT kept;
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
    PERFORM leasehold.close(was, r);
    RETURN before > 0;
END $$;
