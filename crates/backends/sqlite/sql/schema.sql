-- The tables of one file, format 2. A file of format 1 becomes one of format 2 by upgrade_2.sql.
--
-- Times are nanoseconds of the host's boot clock. They can be compared within one boot; `meta.boot` names the
-- boot, and the first process of another boot ends what was there (reboot.sql, ADR 0010). A number that means
-- "none" is 0. A time that means "never" is the greatest integer. A later format may add columns with
-- defaults: every statement names the columns that it uses.

CREATE TABLE meta (
    -- format: the format that was written last; boot: the boot that the times belong to; forgotten: see
    -- resource.floor; logs: the number of logs that were started
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- Contended resources. Each row has the sums and counts of the other tables, so that a claim on a free
-- resource reads one row.
CREATE TABLE resource (
    id            INTEGER PRIMARY KEY,
    key           TEXT NOT NULL UNIQUE,
    capacity      INTEGER NOT NULL,            -- of the claims that hold or wait; if there are none, unused
    held          INTEGER NOT NULL,            -- the sum of the weights of the holders
    seats         INTEGER NOT NULL,            -- the number of holders
    places        INTEGER NOT NULL,            -- the number of claims in the queue
    graves        INTEGER NOT NULL,            -- the number of tombstones
    settle_at     INTEGER NOT NULL,            -- no holder, place, tombstone or pause ends before
    paused_until  INTEGER NOT NULL,
    paused_for    INTEGER NOT NULL,            -- its length; with paused_wall, it survives a reboot
    paused_wall   INTEGER NOT NULL,            -- its end by the wall clock, in microseconds since 1970
    last          INTEGER NOT NULL,            -- the last token that was given out
    floor         INTEGER NOT NULL,            -- the greatest token of the rows swept before
    version       INTEGER NOT NULL,            -- the cursor; starts at the boot clock, so that it never repeats
    watched_until INTEGER NOT NULL,            -- until then, a claim without a place waits for a change
    silence_at    INTEGER NOT NULL DEFAULT 0,  -- no claim in the queue becomes silent before; 0: none was called
    silent        INTEGER NOT NULL DEFAULT 0   -- 0: no claim in the queue is silent; 1: some may be
) STRICT;

-- Holders.
CREATE TABLE seat (
    resource    INTEGER NOT NULL,
    owner       BLOB NOT NULL,                 -- 16 bytes; a secret, so only the owner of the file may read it
    ends        INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    turns       INTEGER NOT NULL DEFAULT 0,    -- how often it was handed over in a row
    evicting    INTEGER NOT NULL DEFAULT 0,    -- an operator lets it run out
    kept        INTEGER NOT NULL DEFAULT 0,    -- released with `keep_for`, which is this long
    kept_wall   INTEGER NOT NULL DEFAULT 0,    -- the end of it by the wall clock, in microseconds since 1970
    holder      TEXT NOT NULL,
    note        BLOB,
    asked_until INTEGER NOT NULL DEFAULT 0,    -- an operator asks it to finish until then
    asked_by    TEXT,
    asked_why   TEXT,
    PRIMARY KEY (resource, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX seat_end ON seat (resource, ends);

-- The queue: claims that wait, by arrival. A program of format 1 leaves `heard` and the columns after it at 0.
CREATE TABLE place (
    resource    INTEGER NOT NULL,
    arrival     INTEGER NOT NULL,
    owner       BLOB NOT NULL,
    ends        INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    holder      TEXT NOT NULL,
    heard       INTEGER NOT NULL DEFAULT 0,    -- when its last request came; 0: such a claim is never silent
    called      INTEGER NOT NULL DEFAULT 0,    -- when it was told that it can be granted; 0: it answered since
    silent      INTEGER NOT NULL DEFAULT 0,    -- 1: it was called and did not answer, so it is passed over
    client      INTEGER NOT NULL DEFAULT 0,    -- the id of its client; 0: none
    client_lock INTEGER NOT NULL DEFAULT 0,    -- the byte of the change file that its client has locked; 0: none
    PRIMARY KEY (resource, arrival)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX place_owner ON place (resource, owner);
CREATE INDEX place_end ON place (resource, ends);
CREATE INDEX place_silent ON place (resource, silent, arrival);

-- Tombstones: owners whose requests are refused.
CREATE TABLE grave (
    resource INTEGER NOT NULL,
    owner    BLOB NOT NULL,
    ends     INTEGER NOT NULL,
    evicted  INTEGER NOT NULL,                 -- 1: evicted by an operator; 0: cancelled
    PRIMARY KEY (resource, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX grave_end ON grave (resource, ends);

-- Wake-ups for waiters in other processes; the last 1024. Written only while a claim waits (ADR 0012).
CREATE TABLE ring (
    sequence INTEGER PRIMARY KEY,
    resource INTEGER NOT NULL,
    owner    BLOB                              -- that lost its place; null: all that can be granted; empty: all
) STRICT;

-- The audit trail of operator commands; the last ten thousand.
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
