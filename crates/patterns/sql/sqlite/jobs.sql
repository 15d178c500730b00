-- The table of jobs. Times are milliseconds since 1970, by the clock of the host.
--
-- `due` is when the job can be claimed: when its delay is over, or when the claim of its worker runs out.
-- Null: never, the job is done or dead.
CREATE TABLE IF NOT EXISTS leasehold_jobs (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    queue               TEXT    NOT NULL,
    key                 TEXT,
    payload             BLOB    NOT NULL,
    state               TEXT    NOT NULL CHECK (state IN ('ready', 'running', 'done', 'dead')),
    due                 INTEGER,
    attempts            INTEGER NOT NULL DEFAULT 0,
    attempts_max        INTEGER NOT NULL,
    worker              TEXT,
    version             INTEGER NOT NULL DEFAULT 1,
    last_fencing_token  INTEGER NOT NULL DEFAULT 0,
    result              BLOB,
    error               TEXT,
    added_at            INTEGER NOT NULL,
    changed_at          INTEGER NOT NULL,
    UNIQUE (queue, key)
);
CREATE INDEX IF NOT EXISTS leasehold_jobs_due ON leasehold_jobs (queue, due, id) WHERE due IS NOT NULL;
