-- The verb `order`: a command of an operator, and its audit record in the same transaction.
--
-- takes  order_key       the resource
--        order_token     the token of the holder that the command is for; 0: the newest holder
--        order_by        the operator
--        order_why       the reason
--        order_command   pause, resume, resize, ask, evict, evict-now or evict-foreign
--        number          pause, ask: microseconds; resize: the capacity; otherwise 0
-- gives  done            whether it was done
--        newest          the newest token among the holders
CREATE OR REPLACE FUNCTION leasehold.command(
    order_key text, order_token bigint, order_by text, order_why text, order_command text, number bigint,
    OUT done boolean, OUT newest bigint
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
        IF r.look_at <= r.seen THEN
            r := leasehold.pass_over(r, NULL);
        END IF;
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
                WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
            WHEN 'evict' THEN
                UPDATE leasehold.seat SET evicting = true WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
            WHEN 'evict-now' THEN
                DELETE FROM leasehold.seat WHERE owner = meant.owner AND resource + 0 = r.id;
                done := FOUND;
                IF done THEN
                    r.seats := r.seats - 1;
                    r.held := r.held - meant.weight;
                    -- The tombstone outlives every request of the holder that may be under way: at least 3 minutes.
                    r := leasehold.bury(r, meant.owner,
                        greatest(2 * leasehold.micros(meant.ends - r.seen), 180000000), true);
                END IF;
            ELSE
                -- `evict-foreign`: no other program has locks here, so there is nothing to do.
                NULL;
            END CASE;
        END IF;
        IF done THEN
            r.version := r.version + 1;
        END IF;
        PERFORM leasehold.finish(was, r);
    END IF;
    INSERT INTO leasehold.audit (at, resource, command, token, by, why, done)
    VALUES (clock_timestamp(), order_key, order_command, order_token, order_by, order_why, done)
    RETURNING sequence INTO recorded;
    DELETE FROM leasehold.audit WHERE sequence <= recorded - 10000;
END $$;
