-- The audit trail, newest first.
--
-- takes  $1 the sequence after the newest, $2 prefix, $3 how many, $4 the request id
-- gives  sequence, microseconds since 1970, resource, command, token, by, why, done, the request id; if there is nothing,
--        one row of nulls with the request id
SELECT page.*, $4::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN (
    SELECT sequence, leasehold.clock(at), resource, command, token, by, why, done FROM leasehold.audit
    WHERE sequence < $1 AND starts_with(resource, $2)
    ORDER BY sequence DESC LIMIT $3
) page ON true
ORDER BY page.sequence DESC
