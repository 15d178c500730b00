-- Idempotency keys. All times are the database's own.
--
-- Without an answer, `until` is when the claim of the running request runs out. With an answer, it is when
-- the row expires.
CREATE TABLE IF NOT EXISTS leasehold_keys (
    key      TEXT        PRIMARY KEY,
    payload  BYTEA       NOT NULL,
    token    BIGINT      NOT NULL,
    answer   BYTEA,
    until    TIMESTAMPTZ NOT NULL
);
CREATE INDEX IF NOT EXISTS leasehold_keys_until ON leasehold_keys (until);
