-- The table of jobs. All times are the database's own.
--
-- `due` is when the job can be claimed: when its delay is over, or when the claim of its worker runs out.
-- Null: never, the job is done or dead.
CREATE TABLE IF NOT EXISTS leasehold_jobs (
    id                  BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue               TEXT        NOT NULL,
    key                 TEXT,
    payload             BYTEA       NOT NULL,
    state               TEXT        NOT NULL CHECK (state IN ('ready', 'running', 'done', 'dead')),
    due                 TIMESTAMPTZ,
    attempts            INTEGER     NOT NULL DEFAULT 0,
    attempts_max        INTEGER     NOT NULL,
    worker              TEXT,
    version             BIGINT      NOT NULL DEFAULT 1,
    last_fencing_token  BIGINT      NOT NULL DEFAULT 0,
    result              BYTEA,
    error               TEXT,
    added_at            TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    changed_at          TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (queue, key)
);
CREATE INDEX IF NOT EXISTS leasehold_jobs_due ON leasehold_jobs (queue, due, id) WHERE due IS NOT NULL;
