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
-- gives  weight; nothing if it does not hold, or has already said farewell
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 AND kept = 0 RETURNING weight;

-- name: remove_only
-- takes  ?1 resource, ?2 owner
-- The same where there is but one seat: its weight is known, and to return it would take a table of its own.
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 AND kept = 0;

-- name: evict
-- takes  ?1 resource, ?2 owner
-- gives  weight
DELETE FROM seat WHERE resource = ?1 AND owner = ?2 RETURNING weight;

-- name: settle
-- takes  ?1 resource, ?2 now
-- gives  weight of each that has ended
DELETE FROM seat WHERE resource = ?1 AND ends <= ?2 RETURNING weight;

-- name: prolong
-- takes  ?1 resource, ?2 owner, ?3 ends
UPDATE seat SET ends = ?3 WHERE resource = ?1 AND owner = ?2;

-- name: note
-- takes  ?1 resource, ?2 owner, ?3 note
UPDATE seat SET note = ?3 WHERE resource = ?1 AND owner = ?2;

-- name: keep
-- takes  ?1 resource, ?2 owner, ?3 ends, ?4 how long, ?5 until when by the calendar
UPDATE seat SET ends = ?3, kept = ?4, kept_wall = ?5 WHERE resource = ?1 AND owner = ?2;

-- name: ask
-- takes  ?1 resource, ?2 owner, ?3 until, ?4 by, ?5 why
UPDATE seat SET asked_until = ?3, asked_by = ?4, asked_why = ?5 WHERE resource = ?1 AND owner = ?2;

-- name: let_run_out
-- takes  ?1 resource, ?2 owner
UPDATE seat SET evicting = 1 WHERE resource = ?1 AND owner = ?2;

-- name: newest
-- takes  ?1 resource
-- gives  token, owner, ends
SELECT token, owner, ends FROM seat WHERE resource = ?1 ORDER BY token DESC LIMIT 1;

-- name: of_token
-- takes  ?1 resource, ?2 token
-- gives  token, owner, ends
SELECT token, owner, ends FROM seat WHERE resource = ?1 AND token = ?2;

-- name: next_ends
-- takes  ?1 resource, ?2 how many
-- gives  the seat as others see it, the one that ends soonest first
SELECT ends, token, weight, since, turns, evicting, kept, holder, note, asked_until, asked_by, asked_why
FROM seat WHERE resource = ?1 ORDER BY ends, owner LIMIT ?2;

-- name: list
-- takes  ?1 resource, ?2 now, ?3 how many
-- gives  the seat as others see it, by token
SELECT ends, token, weight, since, turns, evicting, kept, holder, note, asked_until, asked_by, asked_why
FROM seat WHERE resource = ?1 AND ends > ?2 ORDER BY token LIMIT ?3;

-- name: count
-- takes  ?1 resource, ?2 now
-- gives  how many hold
SELECT count(*) FROM seat WHERE resource = ?1 AND ends > ?2;
