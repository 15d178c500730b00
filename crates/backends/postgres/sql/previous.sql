-- Functions with the parameters of earlier revisions. Clients of the previous release call them, and a verb of an earlier
-- revision that is under way while this script is executed. They say nothing of their client, so each of their claims is
-- silent for itself, and has the whole second to answer.

CREATE OR REPLACE FUNCTION leasehold.acquire(
    claim_key text, claim_owner bytea, claim_weight bigint, claim_capacity bigint, claim_ttl bigint,
    claim_place_ttl bigint, claim_queues boolean, from_owner bytea, from_bury bigint, claim_floor bigint,
    claim_note bytea, claim_holder text, claim_client text, line_max bigint
) RETURNS SETOF leasehold.verdict
LANGUAGE sql AS $$
    SELECT * FROM leasehold.acquire(claim_key, claim_owner, claim_weight, claim_capacity, claim_ttl, claim_place_ttl,
        claim_queues, from_owner, from_bury, claim_floor, claim_note, claim_holder, claim_client, line_max, NULL, NULL)
$$;

CREATE OR REPLACE FUNCTION leasehold.watch(
    claim_key text, claim_owner bytea, cursor bigint, at_most bigint, claim_client text
) RETURNS bigint
LANGUAGE sql AS $$ SELECT leasehold.watch(claim_key, claim_owner, cursor, at_most, claim_client, NULL) $$;

CREATE OR REPLACE FUNCTION leasehold.close(was leasehold.resource, r leasehold.resource) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM leasehold.finish(was, r);
END $$;
