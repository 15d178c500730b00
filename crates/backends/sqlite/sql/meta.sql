-- name: begin
-- The write lock first: a read that turns into a write later would fail under a neighbour's commit.
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: get
-- takes  ?1 name
-- gives  value
SELECT value FROM meta WHERE name = ?1;

-- name: put
-- takes  ?1 name, ?2 value
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: begin_log
-- Whatever is written first begins the log anew; it must be a change, or nothing is written.
INSERT INTO meta (name, value) VALUES ('logs', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1;

-- name: tables
-- gives  how many tables there are, of whatever program
SELECT count(*) FROM sqlite_schema;
