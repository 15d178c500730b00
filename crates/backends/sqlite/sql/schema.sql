-- The tables of one file, format 1.
--
-- Times are nanoseconds of the host's boot clock, comparable within one boot; `meta.boot` names it, and the first
-- process of another boot ends what was there (boot.sql). Numbers that mean "none" are 0, moments that mean "never"
-- are the greatest integer. A later format may add columns with defaults: every statement names those it uses.

CREATE TABLE meta (
    -- format: who wrote it last; boot: whose times these are; forgotten: see resource.floor; logs: how many were begun
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- What is contended. Sums and counts of the other tables stand here, so that a claim on what is free reads one row.
CREATE TABLE resource (
    id            INTEGER PRIMARY KEY,
    key           TEXT NOT NULL UNIQUE,
    capacity      INTEGER NOT NULL,            -- of those who are there; without meaning while nobody is
    held          INTEGER NOT NULL,            -- weights of the seats
    seats         INTEGER NOT NULL,
    places        INTEGER NOT NULL,
    graves        INTEGER NOT NULL,
    settle_at     INTEGER NOT NULL,            -- nothing here ends before
    paused_until  INTEGER NOT NULL,
    paused_for    INTEGER NOT NULL,            -- as ordered; with paused_wall, it survives a reboot
    paused_wall   INTEGER NOT NULL,            -- when the pause ends by the calendar, in microseconds since 1970
    last          INTEGER NOT NULL,            -- token
    floor         INTEGER NOT NULL,            -- the greatest last token of the rows that were swept before this one
    version       INTEGER NOT NULL,            -- the cursor; begins at the boot clock, so that it never repeats
    watched_until INTEGER NOT NULL             -- someone without a place waits for a change until then
) STRICT;

-- Who holds.
CREATE TABLE seat (
    resource    INTEGER NOT NULL,
    owner       BLOB NOT NULL,                 -- 16 bytes: a secret, hence the mode of the file
    ends        INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    turns       INTEGER NOT NULL DEFAULT 0,
    evicting    INTEGER NOT NULL DEFAULT 0,
    kept        INTEGER NOT NULL DEFAULT 0,    -- released, and to stay closed this long
    kept_wall   INTEGER NOT NULL DEFAULT 0,    -- when that ends by the calendar, in microseconds since 1970
    holder      TEXT NOT NULL,
    note        BLOB,
    asked_until INTEGER NOT NULL DEFAULT 0,
    asked_by    TEXT,
    asked_why   TEXT,
    PRIMARY KEY (resource, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX seat_end ON seat (resource, ends);

-- Who waits, by arrival.
CREATE TABLE place (
    resource INTEGER NOT NULL,
    arrival  INTEGER NOT NULL,
    owner    BLOB NOT NULL,
    ends     INTEGER NOT NULL,
    weight   INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (resource, arrival)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX place_owner ON place (resource, owner);
CREATE INDEX place_end ON place (resource, ends);

-- Whose requests come to nothing.
CREATE TABLE grave (
    resource INTEGER NOT NULL,
    owner    BLOB NOT NULL,
    ends     INTEGER NOT NULL,
    evicted  INTEGER NOT NULL,                 -- by an operator; else buried
    PRIMARY KEY (resource, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX grave_end ON grave (resource, ends);

-- Whom waiters in other processes should look at; the last thousand or so. Written only while somebody waits.
CREATE TABLE ring (
    sequence INTEGER PRIMARY KEY,
    resource INTEGER NOT NULL,
    owner    BLOB                              -- whose place is gone; null: who can move; empty: everyone there
) STRICT;

-- What operators did; the last ten thousand.
CREATE TABLE audit (
    sequence INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,                 -- microseconds since 1970
    resource TEXT NOT NULL,                    -- key
    command  TEXT NOT NULL,
    token    INTEGER NOT NULL,
    by       TEXT NOT NULL,
    why      TEXT NOT NULL,
    done     INTEGER NOT NULL
) STRICT;
