-- The operator's verb, with its audit record in the same step.
--
-- takes  resource; the token that is meant (0: whoever is there); by whom, why; the command by its stable name; its
--        number: microseconds to ask or pause for, or the capacity to resize to
-- gives  whether it was done; the newest token there, if it was not
CREATE OR REPLACE FUNCTION leasehold.command(
    order_key text, order_token bigint, order_by text, order_why text, order_command text, number bigint,
    OUT done boolean, OUT newest bigint
)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    was    leasehold.resource;
    r      leasehold.resource;
    meant  leasehold.seat;
    recorded bigint;
BEGIN
    was := leasehold.lock(order_key, order_command IN ('pause', 'resume'));
    done := false;
    IF was.id IS NOT NULL THEN
        r := leasehold.settle(was);
        SELECT max(token) INTO newest FROM leasehold.seat WHERE resource = r.id;
        SELECT * INTO meant FROM leasehold.seat
        WHERE resource = r.id AND token = CASE order_token WHEN 0 THEN newest ELSE order_token END FOR UPDATE;
        IF order_token = 0 OR meant.owner IS NOT NULL THEN
            CASE order_command
            WHEN 'pause' THEN
                r.paused_until := r.seen + leasehold.span(number);
                r.settle_at := least(r.settle_at, r.paused_until);
                done := true;
            WHEN 'resume' THEN
                r.paused_until := NULL;
                done := true;
            WHEN 'resize' THEN
                done := r.seats > 0 OR r.places > 0;
                IF done THEN
                    r.capacity := number;
                END IF;
            WHEN 'ask' THEN
                UPDATE leasehold.seat SET asked_until = r.seen + leasehold.span(number), asked_by = order_by,
                    asked_why = order_why
                WHERE resource = r.id AND owner = meant.owner;
                done := FOUND;
            WHEN 'evict' THEN
                UPDATE leasehold.seat SET evicting = true WHERE resource = r.id AND owner = meant.owner;
                done := FOUND;
            WHEN 'evict-now' THEN
                DELETE FROM leasehold.seat WHERE resource = r.id AND owner = meant.owner;
                done := FOUND;
                IF done THEN
                    r.seats := r.seats - 1;
                    r.held := r.held - meant.weight;
                    -- Longer than any request of it can be under way.
                    r := leasehold.bury(r, meant.owner,
                        greatest(2 * leasehold.micros(meant.ends - r.seen), 180000000), true);
                END IF;
            END CASE;
        END IF;
        IF done THEN
            r.version := r.version + 1;
        END IF;
        PERFORM leasehold.close(was, r);
    END IF;
    INSERT INTO leasehold.audit (at, resource, command, token, by, why, done)
    VALUES (clock_timestamp(), order_key, order_command, order_token, order_by, order_why, done)
    RETURNING sequence INTO recorded;
    DELETE FROM leasehold.audit WHERE sequence <= recorded - 10000;
END $$;
