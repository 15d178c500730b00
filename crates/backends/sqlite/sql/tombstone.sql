-- Tombstones: owners whose late requests are refused (table `grave`).

-- name: find
-- takes  ?1 resource, ?2 owner
-- gives  evicted
SELECT evicted FROM grave WHERE resource = ?1 AND owner = ?2;

-- name: remove
-- takes  ?1 resource, ?2 owner
DELETE FROM grave WHERE resource = ?1 AND owner = ?2;

-- name: insert
-- takes  ?1 resource, ?2 owner, ?3 ends, ?4 evicted
INSERT INTO grave (resource, owner, ends, evicted) VALUES (?1, ?2, ?3, ?4);

-- name: remove_expired
-- takes  ?1 resource, ?2 now
DELETE FROM grave WHERE resource = ?1 AND ends <= ?2;
