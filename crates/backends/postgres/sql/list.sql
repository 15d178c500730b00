-- The keys of resources where someone is, or an operator has paused, in key order. Keys are printable ASCII.
--
-- takes  $1 prefix, $2 the key before the first, $3 how many, $4 the request id
-- gives  key, the request id; if there is nothing, one row of null and the request id
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS moment)
SELECT page.key, $4::bigint FROM (VALUES (1)) AS always (row) LEFT JOIN (
    SELECT r.key FROM leasehold.resource r, now
    WHERE r.key >= $1 AND r.key < $1 || chr(127) AND r.key > $2
      AND (r.paused_until > now.moment
           OR EXISTS (SELECT FROM leasehold.seat WHERE resource = r.id AND ends > now.moment)
           OR EXISTS (SELECT FROM leasehold.place WHERE resource = r.id AND ends > now.moment))
    ORDER BY r.key LIMIT $3
) page ON true
ORDER BY page.key
