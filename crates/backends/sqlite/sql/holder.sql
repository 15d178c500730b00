-- Claims that hold a resource (table `seat`).

-- name: find
-- takes  ?1 resource, ?2 owner
-- gives  ends, token, weight, turns, evicting, kept, asked_until, asked_by, asked_why
SELECT ends, token, weight, turns, evicting, kept, asked_until, asked_by, asked_why
FROM seat WHERE resource = ?1 AND owner = ?2;

-- name: insert
-- takes  ?1 resource, ?2 owner, ?3 ends, ?4 token, ?5 weight, ?6 since, ?7 turns, ?8 holder, ?9 note
INSERT INTO seat (resource, owner, ends, token, weight, since, turns, holder, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- name: remove
-- takes  ?1 resource, ?2 owner
-- gives  weight; nothing if the owner does not hold, or released with `keep_for`
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 AND kept = 0 RETURNING weight;

-- name: remove_only
-- takes  ?1 resource, ?2 owner
-- The same if there is only one holder. Its weight is in the row of the resource, and RETURNING would make
-- SQLite use a temporary table.
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 AND kept = 0;

-- name: evict
-- takes  ?1 resource, ?2 owner
-- gives  weight
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 RETURNING weight;

-- name: remove_expired
-- takes  ?1 resource, ?2 now
-- gives  the weight of each holder that was removed
DELETE FROM seat WHERE resource = ?1 AND ends <= ?2 RETURNING weight;

-- name: extend
-- takes  ?1 resource, ?2 owner, ?3 ends
UPDATE seat SET ends = ?3 WHERE resource = ?1 AND owner = ?2;

-- name: set_note
-- takes  ?1 resource, ?2 owner, ?3 note
UPDATE seat SET note = ?3 WHERE resource = ?1 AND owner = ?2;

-- name: keep
-- takes  ?1 resource, ?2 owner, ?3 ends, ?4 length, ?5 end by the wall clock in microseconds
UPDATE seat SET ends = ?3, kept = ?4, kept_wall = ?5 WHERE resource = ?1 AND owner = ?2;

-- name: ask_to_finish
-- takes  ?1 resource, ?2 owner, ?3 until, ?4 by, ?5 why
UPDATE seat SET asked_until = ?3, asked_by = ?4, asked_why = ?5 WHERE resource = ?1 AND owner = ?2;

-- name: mark_evicting
-- takes  ?1 resource, ?2 owner
UPDATE seat SET evicting = 1 WHERE resource = ?1 AND owner = ?2;

-- name: newest
-- takes  ?1 resource
-- gives  token, owner, ends
SELECT token, owner, ends FROM seat WHERE resource = ?1 ORDER BY token DESC LIMIT 1;

-- name: find_by_token
-- takes  ?1 resource, ?2 token
-- gives  token, owner, ends
SELECT token, owner, ends FROM seat WHERE resource = ?1 AND token = ?2;

-- name: ending_soonest
-- takes  ?1 resource, ?2 limit
-- gives  what others may see of each holder, without the owner token; the one that ends soonest first
SELECT ends, token, weight, since, turns, evicting, kept, holder, note, asked_until, asked_by, asked_why
FROM seat WHERE resource = ?1 ORDER BY ends, owner LIMIT ?2;

-- name: list
-- takes  ?1 resource, ?2 now, ?3 limit
-- gives  what others may see of each holder, without the owner token; by token
SELECT ends, token, weight, since, turns, evicting, kept, holder, note, asked_until, asked_by, asked_why
FROM seat WHERE resource = ?1 AND ends > ?2 ORDER BY token LIMIT ?3;

-- name: count
-- takes  ?1 resource, ?2 now
-- gives  the number of holders
SELECT count(*) FROM seat WHERE resource = ?1 AND ends > ?2;
