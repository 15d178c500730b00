-- name: insert
-- takes  ?1 resource, ?2 owner
-- gives  sequence
INSERT INTO ring (resource, owner) VALUES (?1, ?2) RETURNING sequence;

-- name: prune
-- takes  ?1 the last sequence to go; never the newest, so that numbers do not repeat
DELETE FROM ring WHERE sequence <= ?1;

-- name: newest
-- gives  sequence, if there is one
SELECT max(sequence) FROM ring;

-- name: after
-- takes  ?1 sequence, ?2 how many
-- gives  sequence, key (null if the resource was swept meanwhile), owner
SELECT sequence, key, owner FROM ring LEFT JOIN resource ON resource.id = ring.resource
WHERE sequence > ?1 ORDER BY sequence LIMIT ?2;
