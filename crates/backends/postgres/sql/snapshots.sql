-- The state of resources, read in one statement. What has expired is left out of the result and not deleted.
--
-- takes  $1 keys, $2 the most holders and the most waiters to list for each, $3 the request id
-- gives  for each resource one row with part 1, then its holders by token (part 2), then the head of its queue (part 3),
--        each with the request id. If there are no resources, one row of nulls with the request id.
WITH now AS MATERIALIZED (
    SELECT clock_timestamp() AS moment
), page AS MATERIALIZED (
    SELECT r.*, now.moment FROM leasehold.resource r, now WHERE r.key = ANY ($1)
), seen AS (
SELECT key, 1 AS part, 0::bigint AS position, capacity, last AS token,
    (SELECT count(*) FROM leasehold.seat WHERE resource = page.id AND ends > page.moment) AS seats,
    (SELECT count(*) FROM leasehold.place WHERE resource = page.id AND ends > page.moment) AS places,
    CASE WHEN paused_until > moment THEN leasehold.micros(paused_until - moment) END AS remaining, version,
    NULL::bigint AS held_for, NULL::bigint AS turns, NULL::boolean AS evicting, NULL::boolean AS kept, NULL AS holder,
    NULL::bytea AS note, NULL::bigint AS asked_for, NULL AS asked_by, NULL AS asked_why, NULL::boolean AS silent
FROM page
UNION ALL
SELECT page.key, 2, s.token, s.weight, s.token, NULL, NULL, leasehold.micros(s.ends - page.moment), NULL,
    leasehold.micros(page.moment - s.since), s.turns, s.evicting, s.kept, s.holder, s.note,
    leasehold.micros(s.asked_until - page.moment), s.asked_by, s.asked_why, NULL
FROM page CROSS JOIN LATERAL (
    SELECT * FROM leasehold.seat WHERE resource = page.id AND ends > page.moment ORDER BY token LIMIT $2) s
UNION ALL
SELECT page.key, 3, p.arrival, p.weight, NULL, NULL, NULL, leasehold.micros(p.ends - page.moment), NULL,
    leasehold.micros(page.moment - p.since), NULL, NULL, NULL, p.holder, NULL, NULL, NULL, NULL,
    -- Not `p.silent`: the tables of the previous release do not have this column.
    coalesce((to_jsonb(p) ->> 'silent')::boolean, false)
FROM page CROSS JOIN LATERAL (
    SELECT * FROM leasehold.place WHERE resource = page.id AND ends > page.moment ORDER BY arrival LIMIT $2) p
)
SELECT seen.*, $3::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN seen ON true
ORDER BY 1, 2, 3
