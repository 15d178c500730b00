-- Cached values of the single-flight pattern. All times are the database's own.
CREATE TABLE IF NOT EXISTS leasehold_cache (
    key    TEXT        PRIMARY KEY,
    entry  BYTEA       NOT NULL,
    ends   TIMESTAMPTZ NOT NULL
);
CREATE INDEX IF NOT EXISTS leasehold_cache_ends ON leasehold_cache (ends);
