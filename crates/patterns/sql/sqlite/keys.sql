-- Idempotency keys. Times are milliseconds since 1970, by the clock of the host.
--
-- `until` is when a request that runs may be taken over, or, with an answer, when it is forgotten.
CREATE TABLE IF NOT EXISTS leasehold_keys (
    key      TEXT    PRIMARY KEY,
    payload  BLOB    NOT NULL,
    token    INTEGER NOT NULL,
    answer   BLOB,
    until    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leasehold_keys_until ON leasehold_keys (until);
