-- The queue of a resource: claims that wait, by arrival (table `place`).

-- name: find
-- takes  ?1 resource, ?2 owner
-- gives  arrival, ends
SELECT arrival, ends FROM place WHERE resource = ?1 AND owner = ?2;

-- name: last
-- takes  ?1 resource
-- gives  the arrival of the last claim in the queue, or null
SELECT max(arrival) FROM place WHERE resource = ?1;

-- name: insert
-- takes  ?1 resource, ?2 arrival, ?3 owner, ?4 ends, ?5 weight, ?6 since, ?7 holder
INSERT INTO place (resource, arrival, owner, ends, weight, since, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: remove
-- takes  ?1 resource, ?2 owner
-- gives  arrival, since
DELETE FROM place WHERE resource = ?1 AND owner = ?2 RETURNING arrival, since;

-- name: remove_expired
-- takes  ?1 resource, ?2 now
-- gives  the owner of each place that was removed
DELETE FROM place WHERE resource = ?1 AND ends <= ?2 RETURNING owner;

-- name: extend
-- takes  ?1 resource, ?2 arrival, ?3 ends
UPDATE place SET ends = ?3 WHERE resource = ?1 AND arrival = ?2;

-- name: head
-- takes  ?1 resource, ?2 limit
-- gives  arrival, weight, owner, ends; from the head of the queue
SELECT arrival, weight, owner, ends FROM place WHERE resource = ?1 ORDER BY arrival LIMIT ?2;

-- name: list
-- takes  ?1 resource, ?2 now, ?3 limit
-- gives  what `inspect` shows of each place, without the owner token; from the head of the queue
SELECT holder, weight, since, ends FROM place WHERE resource = ?1 AND ends > ?2 ORDER BY arrival LIMIT ?3;

-- name: count
-- takes  ?1 resource, ?2 now
-- gives  the number of places
SELECT count(*) FROM place WHERE resource = ?1 AND ends > ?2;
