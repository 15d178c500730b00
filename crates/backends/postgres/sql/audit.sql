-- The audit trail, newest first.
--
-- takes  $1 the sequence after the newest, $2 prefix, $3 how many
-- gives  sequence, microseconds since 1970, resource, command, token, by, why, done
SELECT sequence, leasehold.clock(at), resource, command, token, by, why, done FROM leasehold.audit
WHERE sequence < $1 AND starts_with(resource, $2)
ORDER BY sequence DESC LIMIT $3
