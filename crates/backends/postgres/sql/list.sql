-- The keys of resources that have holders or waiters or are paused, in the order of the keys. Keys are printable ASCII, so
-- chr(127) is above all of them.
--
-- takes  $1 prefix, $2 only keys after this one, $3 the most rows, $4 the request id
-- gives  key, the request id. If there are no keys, one row of null and the request id.
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
