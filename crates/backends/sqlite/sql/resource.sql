-- Contended resources, one row each (table `resource`).

-- name: find
-- takes  ?1 key
-- gives  the row
SELECT id, capacity, held, seats, places, graves, settle_at, paused_until, paused_for, paused_wall, last, floor,
       version, watched_until, silence_at, silent
FROM resource WHERE key = ?1;

-- name: insert
-- takes  ?1 key, ?2 version
-- gives  id, floor
-- The floor of the new row is the greatest token of all rows that were swept, so that no token repeats even
-- if the clock went back (ADR 0010).
INSERT INTO resource (key, capacity, held, seats, places, graves, settle_at, paused_until, paused_for, paused_wall,
                      last, floor, version, watched_until)
VALUES (?1, 0, 0, 0, 0, 0, 9223372036854775807, 0, 0, 0, 0,
        coalesce((SELECT value FROM meta WHERE name = 'forgotten'), 0), ?2, 0)
RETURNING id, floor;

-- name: update
-- takes  ?1 id, then the other columns of the row, without key and floor
UPDATE resource SET capacity = ?2, held = ?3, seats = ?4, places = ?5, graves = ?6, settle_at = ?7,
    paused_until = ?8, paused_for = ?9, paused_wall = ?10, last = ?11, version = ?12, watched_until = ?13,
    silence_at = ?14, silent = ?15
WHERE id = ?1;

-- name: earliest_end
-- takes  ?1 id
-- gives  the earliest end of a holder, place or tombstone
SELECT min(coalesce((SELECT min(ends) FROM seat WHERE resource = ?1), 9223372036854775807),
           coalesce((SELECT min(ends) FROM place WHERE resource = ?1), 9223372036854775807),
           coalesce((SELECT min(ends) FROM grave WHERE resource = ?1), 9223372036854775807));

-- name: sweep_candidates
-- takes  ?1 the id where the last sweep ended, ?2 limit, ?3 now, ?4 the oldest token that is kept
-- gives  id, key, whether the row may be removed; of the next rows by id
SELECT id, key,
       watched_until <= ?3 AND last < ?4 AND ((seats + places + graves = 0 AND paused_until = 0) OR settle_at <= ?3)
FROM resource WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: remove
-- takes  ?1 id
DELETE FROM resource WHERE id = ?1;

-- name: raise_floor
-- takes  ?1 the last token of a row that is removed
INSERT INTO meta (name, value) VALUES ('forgotten', ?1)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);

-- name: list
-- takes  ?1 prefix, ?2 the last key of the page before, ?3 now
-- gives  the keys of resources that may be in use or paused, from the first that is not before the prefix
SELECT key FROM resource
WHERE key >= ?1 AND key > ?2 AND (seats <> 0 OR places <> 0 OR paused_until > ?3)
ORDER BY key;
