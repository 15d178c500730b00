-- Idempotency keys. All times are the database's own.
--
-- `until` is when a request that runs may be taken over, or, with an answer, when it is forgotten.
CREATE TABLE IF NOT EXISTS leasehold_keys (
    key      TEXT        PRIMARY KEY,
    payload  BYTEA       NOT NULL,
    token    BIGINT      NOT NULL,
    answer   BYTEA,
    until    TIMESTAMPTZ NOT NULL
);
CREATE INDEX IF NOT EXISTS leasehold_keys_until ON leasehold_keys (until);
