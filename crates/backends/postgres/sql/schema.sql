-- The tables, format 1. They stand in a schema of their own, which everything here names: `leasehold.`
--
-- Times are the server's. Numbers that mean "none" are 0, moments that mean "never" are infinity. A later format may
-- add columns with defaults: every statement names those it writes.

CREATE TABLE IF NOT EXISTS leasehold.meta (
    name  text PRIMARY KEY,   -- format; revision of the functions; forgotten: see resource.above
    value bigint NOT NULL
);

-- What is contended. Sums and counts of the other tables stand here, so that a claim on what is free reads one row.
-- Every verb but a renewal locks this row first. No index has a column that changes: its updates stay on their page.
CREATE TABLE IF NOT EXISTS leasehold.resource (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key           text COLLATE "C" NOT NULL UNIQUE,
    capacity      bigint NOT NULL DEFAULT 0,   -- of those who are there; without meaning while nobody is
    held          bigint NOT NULL DEFAULT 0,   -- weights of the seats
    seats         bigint NOT NULL DEFAULT 0,
    places        bigint NOT NULL DEFAULT 0,
    graves        bigint NOT NULL DEFAULT 0,
    settle_at     timestamptz NOT NULL DEFAULT 'infinity',     -- nothing here ends before
    paused_until  timestamptz,
    last          bigint NOT NULL DEFAULT 0,   -- token
    above         bigint NOT NULL DEFAULT 0,   -- the greatest last token of rows that were swept before this one
    version       bigint NOT NULL,             -- the cursor; begins at the clock, so that it never repeats
    watched_until timestamptz NOT NULL DEFAULT '-infinity',    -- someone without a place waits for a change until then
    seen          timestamptz NOT NULL         -- when a verb was last here
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- Who holds.
CREATE TABLE IF NOT EXISTS leasehold.seat (
    resource    bigint NOT NULL,
    owner       bytea NOT NULL,                -- 16 bytes: a secret, the capability to renew and release
    ends        timestamptz NOT NULL,
    token       bigint NOT NULL,
    weight      bigint NOT NULL,
    since       timestamptz NOT NULL,
    turns       bigint NOT NULL DEFAULT 0,
    evicting    boolean NOT NULL DEFAULT false,
    kept        boolean NOT NULL DEFAULT false,   -- released, and to stay closed until it ends
    holder      text NOT NULL,
    note        bytea,
    asked_until timestamptz,
    asked_by    text,
    asked_why   text,
    PRIMARY KEY (resource, owner)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX IF NOT EXISTS seat_end ON leasehold.seat (resource, ends);

-- Who waits, by arrival.
CREATE TABLE IF NOT EXISTS leasehold.place (
    resource bigint NOT NULL,
    arrival  bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    weight   bigint NOT NULL,
    since    timestamptz NOT NULL,
    holder   text NOT NULL,
    client   text NOT NULL,                    -- the channel on which its owner hears; empty: it polls
    PRIMARY KEY (resource, arrival)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX IF NOT EXISTS place_owner ON leasehold.place (resource, owner);
CREATE INDEX IF NOT EXISTS place_end ON leasehold.place (resource, ends);

-- Whose requests come to nothing.
CREATE TABLE IF NOT EXISTS leasehold.grave (
    resource bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    evicted  boolean NOT NULL,                 -- by an operator; else buried
    PRIMARY KEY (resource, owner)
);
CREATE INDEX IF NOT EXISTS grave_end ON leasehold.grave (resource, ends);

-- Who waits for any change, without a place. A row goes when its client is told.
CREATE TABLE IF NOT EXISTS leasehold.watcher (
    resource bigint NOT NULL,
    client   text NOT NULL,
    ends     timestamptz NOT NULL,
    PRIMARY KEY (resource, client)
);

-- What operators did; the last ten thousand.
CREATE TABLE IF NOT EXISTS leasehold.audit (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    resource text NOT NULL,                    -- key
    command  text NOT NULL,
    token    bigint NOT NULL,
    by       text NOT NULL,
    why      text NOT NULL,
    done     boolean NOT NULL
);
