-- name: find
-- takes  ?1 key
-- gives  the row
SELECT id, capacity, held, seats, places, graves, settle_at, paused_until, paused_for, paused_wall, last, floor,
       version, watched_until
FROM resource WHERE key = ?1;

-- name: insert
-- takes  ?1 key, ?2 version
-- gives  id, floor
-- The new row starts above every token that was swept away: the clock is not needed for that.
INSERT INTO resource (key, capacity, held, seats, places, graves, settle_at, paused_until, paused_for, paused_wall,
                      last, floor, version, watched_until)
VALUES (?1, 0, 0, 0, 0, 0, 9223372036854775807, 0, 0, 0, 0,
        coalesce((SELECT value FROM meta WHERE name = 'forgotten'), 0), ?2, 0)
RETURNING id, floor;

-- name: update
-- takes  ?1 id, and the rest of the row but the floor
UPDATE resource SET capacity = ?2, held = ?3, seats = ?4, places = ?5, graves = ?6, settle_at = ?7,
    paused_until = ?8, paused_for = ?9, paused_wall = ?10, last = ?11, version = ?12, watched_until = ?13
WHERE id = ?1;

-- name: earliest_end
-- takes  ?1 id
-- gives  when the next seat, place or tombstone ends
SELECT min(coalesce((SELECT min(ends) FROM seat WHERE resource = ?1), 9223372036854775807),
           coalesce((SELECT min(ends) FROM place WHERE resource = ?1), 9223372036854775807),
           coalesce((SELECT min(ends) FROM grave WHERE resource = ?1), 9223372036854775807));

-- name: after
-- takes  ?1 id, ?2 how many, ?3 now, ?4 the token of the retention's end
-- gives  id, key and whether it may be forgotten, of the next rows: the sweep goes round and round
SELECT id, key,
       watched_until <= ?3 AND last < ?4 AND ((seats + places + graves = 0 AND paused_until = 0) OR settle_at <= ?3)
FROM resource WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: remove
-- takes  ?1 id
DELETE FROM resource WHERE id = ?1;

-- name: forget
-- takes  ?1 the last token of a row that is removed
INSERT INTO meta (name, value) VALUES ('forgotten', ?1)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);

-- name: list
-- takes  ?1 the first key, ?2 the key before it, ?3 now
-- gives  key of those where someone may be
SELECT key FROM resource
WHERE key >= ?1 AND key > ?2 AND (seats > 0 OR places > 0 OR paused_until > ?3)
ORDER BY key;
