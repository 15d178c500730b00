-- Wake-ups for waiters in other processes (table `ring`).

-- name: insert
-- takes  ?1 resource, ?2 owner (null: the claims that can be granted; empty: everyone)
-- gives  sequence
INSERT INTO ring (resource, owner) VALUES (?1, ?2) RETURNING sequence;

-- name: prune
-- takes  ?1 the last sequence to delete; never the newest, so that numbers do not repeat
DELETE FROM ring WHERE sequence <= ?1;

-- name: newest
-- gives  the newest sequence, or null
SELECT max(sequence) FROM ring;

-- name: after
-- takes  ?1 sequence, ?2 limit
-- gives  sequence, key (null if the resource was swept since), owner
SELECT sequence, key, owner FROM ring LEFT JOIN resource ON resource.id = ring.resource
WHERE sequence > ?1 ORDER BY sequence LIMIT ?2;
