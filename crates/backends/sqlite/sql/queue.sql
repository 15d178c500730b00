-- The queue of a resource: claims that wait, by arrival (table `place`). A silent claim was called and did not
-- answer: it keeps its place, and is left out of the head of the queue (`silence.rs`). `INDEXED BY` stands where
-- SQLite would read the whole queue instead, because it does not know how many claims are silent.

-- name: find
-- takes  ?1 resource, ?2 owner
-- gives  arrival, ends, called, silent
SELECT arrival, ends, called, silent FROM place WHERE resource = ?1 AND owner = ?2;

-- name: last
-- takes  ?1 resource
-- gives  the arrival of the last claim in the queue, or null
SELECT max(arrival) FROM place WHERE resource = ?1;

-- name: insert
-- takes  ?1 resource, ?2 arrival, ?3 owner, ?4 ends, ?5 weight, ?6 since, ?7 holder, ?8 heard, ?9 client,
--        ?10 client_lock
INSERT INTO place (resource, arrival, owner, ends, weight, since, holder, heard, client, client_lock)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);

-- name: remove
-- takes  ?1 resource, ?2 owner
-- gives  arrival, since
DELETE FROM place WHERE resource = ?1 AND owner = ?2 RETURNING arrival, since;

-- name: remove_expired
-- takes  ?1 resource, ?2 now
-- gives  the owner of each place that was removed
DELETE FROM place WHERE resource = ?1 AND ends <= ?2 RETURNING owner;

-- name: note_heard
-- takes  ?1 resource, ?2 arrival, ?3 now, ?4 client_lock, ?5 ends
UPDATE place SET heard = ?3, called = 0, silent = 0, client_lock = ?4, ends = ?5
WHERE resource = ?1 AND arrival = ?2;

-- name: call
-- takes  ?1 resource, ?2 arrival, ?3 now
UPDATE place SET called = ?3 WHERE resource = ?1 AND arrival = ?2;

-- name: make_silent
-- takes  ?1 resource, ?2 arrival
UPDATE place SET silent = 1, called = 0 WHERE resource = ?1 AND arrival = ?2;

-- name: head
-- takes  ?1 resource, ?2 limit
-- gives  arrival, weight, owner, ends, heard, called, client, client_lock; from the head of the queue, if no
--        claim in it is silent
SELECT arrival, weight, owner, ends, heard, called, client, client_lock FROM place
WHERE resource = ?1 ORDER BY arrival LIMIT ?2;

-- name: live_head
-- takes  ?1 resource, ?2 limit
-- gives  the same, without the silent claims; it does not read them
SELECT arrival, weight, owner, ends, heard, called, client, client_lock FROM place INDEXED BY place_silent
WHERE resource = ?1 AND silent = 0 ORDER BY arrival LIMIT ?2;

-- name: silent
-- takes  ?1 resource, ?2 limit
-- gives  the owners that are silent
SELECT owner FROM place INDEXED BY place_silent WHERE resource = ?1 AND silent = 1 LIMIT ?2;

-- name: list
-- takes  ?1 resource, ?2 now, ?3 limit
-- gives  what `inspect` shows of each place, without the owner token; from the head of the queue
SELECT holder, weight, since, ends, silent FROM place WHERE resource = ?1 AND ends > ?2 ORDER BY arrival LIMIT ?3;

-- name: count
-- takes  ?1 resource, ?2 now
-- gives  the number of places
SELECT count(*) FROM place WHERE resource = ?1 AND ends > ?2;
