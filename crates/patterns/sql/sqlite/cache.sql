-- Cached values of the single-flight pattern. Times are milliseconds since 1970, by the clock of the host.
CREATE TABLE IF NOT EXISTS leasehold_cache (
    key    TEXT    PRIMARY KEY,
    entry  BLOB    NOT NULL,
    ends   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leasehold_cache_ends ON leasehold_cache (ends);
