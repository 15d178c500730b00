-- name: begin
-- Takes the write lock at once. A transaction that reads first and writes later fails if another process
-- commits in between.
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

-- name: start_new_log
-- The first write after a checkpoint starts a new log. It must change a value, else SQLite writes nothing.
INSERT INTO meta (name, value) VALUES ('logs', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1;

-- name: count_tables
-- gives  the number of tables, of any program
SELECT count(*) FROM sqlite_schema;
