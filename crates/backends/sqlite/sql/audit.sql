-- The audit trail of operator commands.

-- name: insert
-- takes  ?1 at, ?2 resource, ?3 command, ?4 token, ?5 by, ?6 why, ?7 done
-- gives  sequence
INSERT INTO audit (at, resource, command, token, by, why, done) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
RETURNING sequence;

-- name: prune
-- takes  ?1 the last sequence to delete
DELETE FROM audit WHERE sequence <= ?1;

-- name: list
-- takes  ?1 the sequence before which the page starts, ?2 prefix of the resource key, ?3 limit
-- gives  sequence, at, resource, command, token, by, why, done; newest first
SELECT sequence, at, resource, command, token, by, why, done FROM audit
WHERE sequence < ?1 AND substr(resource, 1, length(?2)) = ?2
ORDER BY sequence DESC LIMIT ?3;
