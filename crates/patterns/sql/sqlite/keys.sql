-- Idempotency keys. Times are milliseconds since 1970, by the clock of the host.
--
-- Without an answer, `until` is when the claim of the running request runs out. With an answer, it is when
-- the row expires.
CREATE TABLE IF NOT EXISTS leasehold_keys (
    key      TEXT    PRIMARY KEY,
    payload  BLOB    NOT NULL,
    token    INTEGER NOT NULL,
    answer   BLOB,
    until    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leasehold_keys_until ON leasehold_keys (until);
