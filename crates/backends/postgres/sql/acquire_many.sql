-- The verb `acquire` for a batch of claims: one statement, so one transaction and one commit for all of them. ADR 0040.
--
-- Each claim is a step of its own, as if it had come alone. A batch never waits for a row that another transaction has
-- locked, not even when it calls or passes over other claims, so it takes part in no deadlock, and a row that somebody has
-- locked for long holds back its own claim only:
--
--  1. Lock the rows of the resources. Pass over those that another transaction has locked.
--  2. Insert the rows of resources that have none, in the order of their keys, and lock again. Only here a batch may wait: for
--     another transaction that inserts the same key. That one waits for nothing that this one has: a single request inserts
--     one row and then waits for nobody, and all batches insert in the same order.
--  3. Grant the plain claims in one statement: the first claim on each resource that has no holder, no queue, no tombstone,
--     no pause and no watcher. They need no row but that of the resource.
--  4. Carry out the other claims with `acquire`, in the order of their arrival. Each reads what the one before wrote.
--  5. Delete rows of idle resources, if rows were inserted.
--
-- SKIP LOCKED is not enough for that: if a row was updated a moment ago, it waits for the transaction that has locked the
-- newer version. So every wait but that of step 2 ends after 10 ms, which undoes the batch, and it begins anew. ADR 0067.
--
-- Not carried out are claims whose rows another transaction has locked, claims that `acquire` may refuse with an error, and
-- later claims on the resource of such a claim. They are answered `alone`: the client sends each of them by itself.

DO $$ BEGIN
    IF to_regtype('leasehold.numbered_verdict') IS NULL THEN
        CREATE TYPE leasehold.numbered_verdict AS (
            number     bigint,    -- of the claim, from 1
            key        text,      -- of the claim
            owner      bytea,     -- of the claim
            said       text,      -- as in leasehold.verdict; alone: not carried out
            token      bigint,    -- this and all below but the last: as in leasehold.verdict
            remaining  bigint,
            capacity   bigint,
            placed     boolean,
            ahead      bigint,
            changes_in bigint,
            paused     boolean,
            version    bigint,
            held_for   bigint,
            turns      bigint,
            evicting   boolean,
            kept       boolean,
            holder     text,
            note       bytea,
            asked_for  bigint,
            asked_by   text,
            asked_why  text,
            why        text       -- alone: why it was not carried out
        );
    END IF;
END $$;

-- The answer to a claim that was not carried out.
CREATE OR REPLACE FUNCTION leasehold.sent_alone(number bigint, key text, owner bytea, why text)
RETURNS leasehold.numbered_verdict
LANGUAGE sql IMMUTABLE AS $$
    SELECT number, key, owner, 'alone', NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean, NULL::bigint, NULL::bigint,
        NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean, NULL::boolean, NULL, NULL::bytea,
        NULL::bigint, NULL, NULL, why
$$;

-- Carries out the steps above. An error undoes all of them.
-- takes  arrays of the same length, with an element for each claim: see `acquire`. No claim takes over from another one.
--        claim_client, line_max, claim_listener: as in `acquire`
-- gives  for each claim the rows of `acquire`, with the number, the resource and the owner of the claim
CREATE OR REPLACE FUNCTION leasehold.acquire_together(
    keys text[], owners bytea[], weights bigint[], capacities bigint[], ttls bigint[], place_ttls bigint[],
    queues boolean[], floors bigint[], notes bytea[], holders text[], claim_client text, line_max bigint,
    client_ids bigint[], claim_listener integer
) RETURNS SETOF leasehold.numbered_verdict
LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
    missing   text[];
    made      bigint[];      -- ids of the rows that this call inserts
    forgotten bigint;
    locked    text[];        -- keys of the resources that this call has locked
    plain     bigint[];      -- numbers of the plain claims
    plain_ids bigint[];      -- of their resources
    above     bigint[];      -- their tokens must be above these
    moment    timestamptz := clock_timestamp();
    clock     bigint := leasehold.clock(moment);
    r         leasehold.resource;
    alone     text;
BEGIN
    LOOP
        SELECT array_agg(l.key), array_agg(l.number) FILTER (WHERE l.is_plain),
            array_agg(l.id) FILTER (WHERE l.is_plain), array_agg(l.above) FILTER (WHERE l.is_plain)
        INTO locked, plain, plain_ids, above
        FROM (SELECT stored.key, a.number, stored.id, greatest(stored.last, stored.above, a.floor) AS above,
                  leasehold.is_free(stored, moment) AND a.weight <= a.capacity
                      AND leasehold.refusal(stored, a.floor, clock) IS NULL AS is_plain
              FROM unnest(keys, weights, capacities, floors) WITH ORDINALITY AS a (key, weight, capacity, floor, number)
              JOIN leasehold.resource stored ON stored.key = a.key
              WHERE array_position(keys, a.key) = a.number
              ORDER BY stored.key FOR NO KEY UPDATE OF stored SKIP LOCKED) l;
        EXIT WHEN cardinality(locked) = cardinality(keys) OR made IS NOT NULL;
        missing := ARRAY(SELECT DISTINCT a.key FROM unnest(keys) AS a (key)
                         WHERE NOT EXISTS (SELECT FROM leasehold.resource stored WHERE stored.key = a.key));
        EXIT WHEN cardinality(missing) = 0;
        PERFORM set_config('lock_timeout', '250ms', true);
        WITH inserted AS (
            INSERT INTO leasehold.resource (key, version, seen)
            SELECT m.key, leasehold.clock(clock_timestamp()), clock_timestamp()
            FROM unnest(missing) AS m (key) ORDER BY m.key COLLATE "C"
            ON CONFLICT (key) DO NOTHING RETURNING id
        )
        SELECT coalesce(array_agg(id), '{}') INTO made FROM inserted;
        -- Read after the insert: see `lock`.
        SELECT value INTO forgotten FROM leasehold.meta WHERE name = 'forgotten';
        IF forgotten > 0 THEN
            UPDATE leasehold.resource SET above = forgotten WHERE id = ANY (made);
        END IF;
        PERFORM set_config('lock_timeout', '10ms', true);
    END LOOP;
    locked := coalesce(locked, '{}');
    plain := coalesce(plain, '{}');
    -- Read the clock only now, as in `lock`.
    moment := clock_timestamp();
    clock := leasehold.clock(moment);

    IF cardinality(plain) > 0 THEN
        RETURN QUERY
            WITH granted AS MATERIALIZED (
                SELECT p.number, p.id, greatest(p.above + 1, clock) AS token,
                    moment + leasehold.span(ttls[p.number]) AS until
                FROM unnest(plain, plain_ids, above) AS p (number, id, above)
            ), seats AS (
                INSERT INTO leasehold.seat (resource, owner, ends, token, weight, since, turns, holder, note)
                SELECT g.id, owners[g.number], g.until, g.token, weights[g.number], moment, 0, holders[g.number],
                    notes[g.number]
                FROM granted g
            ), resources AS (
                UPDATE leasehold.resource stored SET capacity = capacities[g.number], held = weights[g.number], seats = 1,
                    settle_at = g.until, last = g.token, version = stored.version + 1, seen = moment
                FROM granted g WHERE stored.id = g.id
            )
            SELECT g.number, keys[g.number], owners[g.number], 'granted', g.token, ttls[g.number], NULL::bigint, NULL::boolean,
                NULL::bigint, NULL::bigint, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean,
                NULL::boolean, NULL, NULL::bytea, NULL::bigint, NULL, NULL, NULL
            FROM granted g;
    END IF;

    FOR number IN 1 .. CASE WHEN cardinality(plain) < cardinality(keys) THEN cardinality(keys) ELSE 0 END LOOP
        CONTINUE WHEN number = ANY (plain);
        alone := NULL;
        IF keys[number] = ANY (locked) THEN
            SELECT * INTO r FROM leasehold.resource WHERE key = keys[number];
            alone := leasehold.refusal(r, floors[number], clock);
            IF queues[number] AND r.places >= line_max THEN
                alone := 'full';
            ELSIF r.places > 0 THEN
                PERFORM FROM leasehold.place WHERE owner = owners[number] AND resource + 0 = r.id FOR UPDATE SKIP LOCKED;
                IF NOT FOUND AND EXISTS (
                    SELECT FROM leasehold.place WHERE owner = owners[number] AND resource + 0 = r.id)
                THEN
                    alone := 'locked';
                END IF;
            END IF;
            IF alone IS NOT NULL THEN
                locked := array_remove(locked, keys[number]);
            END IF;
        ELSE
            alone := 'locked';
        END IF;
        IF alone IS NULL THEN
            RETURN QUERY SELECT number::bigint, keys[number], owners[number], v.*, NULL
                FROM leasehold.acquire(keys[number], owners[number], weights[number], capacities[number], ttls[number],
                    place_ttls[number], queues[number], NULL, -1, floors[number], notes[number], holders[number],
                    claim_client, line_max, client_ids[number], claim_listener) v;
        ELSE
            RETURN QUERY SELECT * FROM leasehold.sent_alone(number, keys[number], owners[number], alone);
        END IF;
    END LOOP;

    IF cardinality(made) > 0 THEN
        PERFORM leasehold.sweep((SELECT max(id) FROM unnest(made) AS id), 8 * cardinality(made));
    END IF;
END $$;

-- The batch. It begins anew if it would have to wait for a lock. If one claim causes another error, because a row is damaged
-- for example, nothing of the batch is carried out, and all claims are answered `alone`: so the error reaches the claim that
-- causes it and no other.
CREATE OR REPLACE FUNCTION leasehold.acquire_many(
    keys text[], owners bytea[], weights bigint[], capacities bigint[], ttls bigint[], place_ttls bigint[],
    queues boolean[], floors bigint[], notes bytea[], holders text[], claim_client text, line_max bigint,
    client_ids bigint[], claim_listener integer
) RETURNS SETOF leasehold.numbered_verdict
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    failed text;
BEGIN
    PERFORM leasehold.commit_durably();
    FOR attempt IN 1 .. 3 LOOP
        BEGIN
            RETURN QUERY SELECT * FROM leasehold.acquire_together(
                keys, owners, weights, capacities, ttls, place_ttls, queues, floors, notes, holders, claim_client, line_max,
                client_ids, claim_listener);
            RETURN;
        EXCEPTION
            WHEN lock_not_available THEN
                failed := 'locked';
            WHEN OTHERS THEN
                failed := SQLSTATE || ' ' || SQLERRM;
                EXIT;
        END;
    END LOOP;
    RETURN QUERY SELECT alone.* FROM unnest(keys, owners) WITH ORDINALITY AS a (key, owner, number)
        CROSS JOIN LATERAL leasehold.sent_alone(a.number, a.key, a.owner, failed) alone;
END $$;

-- `acquire` for a claim that was answered `alone`. It waits for locked rows, but not for long: other claims of its batch
-- were carried out, and their callers wait for the answer to this one.
-- takes  patience   how long it waits for a lock, in milliseconds
--        the others: as in `acquire`
-- gives  the rows of `acquire`; or one row `locked` if the time was too short, and nothing was carried out
CREATE OR REPLACE FUNCTION leasehold.acquire_soon(
    claim_key text, claim_owner bytea, claim_weight bigint, claim_capacity bigint, claim_ttl bigint,
    claim_place_ttl bigint, claim_queues boolean, from_owner bytea, from_bury bigint, claim_floor bigint,
    claim_note bytea, claim_holder text, claim_client text, line_max bigint, claim_client_id bigint,
    claim_listener integer, patience bigint
) RETURNS SETOF leasehold.verdict
LANGUAGE plpgsql AS $$
DECLARE
    limit_before text := current_setting('lock_timeout');
    answer       leasehold.verdict;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    RETURN QUERY SELECT * FROM leasehold.acquire(claim_key, claim_owner, claim_weight, claim_capacity, claim_ttl,
        claim_place_ttl, claim_queues, from_owner, from_bury, claim_floor, claim_note, claim_holder, claim_client, line_max,
        claim_client_id, claim_listener);
    -- The commit takes a lock too, for its notifications: it may wait. ADR 0067.
    PERFORM set_config('lock_timeout', limit_before, true);
EXCEPTION WHEN lock_not_available THEN
    answer.said := 'locked';
    RETURN NEXT answer;
END $$;
