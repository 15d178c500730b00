-- The audit trail, newest first.
--
-- takes  $1 only records with a lower sequence number than this, $2 prefix of the resource key, $3 the most rows,
--        $4 the request id
-- gives  sequence, microseconds since 1970, resource, command, token, by, why, done, the request id. If there are no
--        records, one row of nulls with the request id: every reply has a row that carries it (ADR 0033).
SELECT page.*, $4::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN (
    SELECT sequence, CASE WHEN isfinite(at) THEN leasehold.clock(at) ELSE 0 END, resource, command, token, by, why, done FROM leasehold.audit
    WHERE sequence < $1 AND starts_with(resource, $2)
    ORDER BY sequence DESC LIMIT $3
) page ON true
ORDER BY page.sequence DESC
