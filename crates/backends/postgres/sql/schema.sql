-- The tables, format 1, in a schema of their own. The name of the schema is put in before this is executed.
--
-- The names of tables and columns are part of the stored format and older than the words of the documentation: a row of
-- `seat` is a holder, of `place` a claim in the queue, of `grave` a tombstone; `turns` counts handovers, and `asked_*` is the
-- request of an operator that the holder finish.
--
-- Times are the server's. 0 stands for "no number", infinity for "never". A later release may add columns with defaults:
-- every statement names the columns that it writes.

CREATE TABLE IF NOT EXISTS leasehold.meta (
    name  text PRIMARY KEY,   -- format: of the tables; revision: of the functions; forgotten: see resource.above
    value bigint NOT NULL
);

-- The resources. Sums and counts over the other tables are stored here, so that a claim on a free resource reads one row.
-- Every verb but `renew` locks this row first. No indexed column ever changes, so an update stays on its page (HOT).
CREATE TABLE IF NOT EXISTS leasehold.resource (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key           text COLLATE "C" NOT NULL UNIQUE,
    capacity      bigint NOT NULL DEFAULT 0,   -- of the holders and waiters; without meaning while there are none
    held          bigint NOT NULL DEFAULT 0,   -- sum of the weights of the seats
    seats         bigint NOT NULL DEFAULT 0,
    places        bigint NOT NULL DEFAULT 0,
    graves        bigint NOT NULL DEFAULT 0,
    settle_at     timestamptz NOT NULL DEFAULT 'infinity',     -- nothing of this resource expires before
    paused_until  timestamptz,
    last          bigint NOT NULL DEFAULT 0,   -- the last fencing token
    above         bigint NOT NULL DEFAULT 0,   -- `forgotten` when this row was made: tokens are above it
    version       bigint NOT NULL,             -- the cursor; begins at the clock, so that a new row repeats no old one
    watched_until timestamptz NOT NULL DEFAULT '-infinity',    -- there are watchers until then
    seen          timestamptz NOT NULL,        -- when a verb last used this row
    look_at       timestamptz NOT NULL DEFAULT 'infinity'      -- no place becomes silent before, and unless capacity is
                                               -- freed, none has to be called before
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- The holders.
CREATE TABLE IF NOT EXISTS leasehold.seat (
    resource    bigint NOT NULL,
    owner       bytea NOT NULL,                -- 16 bytes, secret: a client that knows them can renew and release
    ends        timestamptz NOT NULL,
    token       bigint NOT NULL,
    weight      bigint NOT NULL,
    since       timestamptz NOT NULL,
    turns       bigint NOT NULL DEFAULT 0,     -- handovers in a row
    evicting    boolean NOT NULL DEFAULT false,
    kept        boolean NOT NULL DEFAULT false,   -- released; stays closed to others until it expires
    holder      text NOT NULL,
    note        bytea,
    asked_until timestamptz,
    asked_by    text,
    asked_why   text,
    PRIMARY KEY (owner, resource)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- The queue: the waiting claims, in the order of arrival.
CREATE TABLE IF NOT EXISTS leasehold.place (
    resource bigint NOT NULL,
    arrival  bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    weight   bigint NOT NULL,
    since    timestamptz NOT NULL,
    holder   text NOT NULL,
    client   text NOT NULL,                    -- the channel on which to notify its client; empty: it polls
    client_id bigint,                          -- the client: its places are silent together
    listener  integer,                         -- the lock that the client holds while it listens; null: not known to listen
    heard_at  timestamptz NOT NULL DEFAULT now(),       -- when its last request came
    called_at timestamptz,                     -- when it was told that it can be granted, if it has not answered yet
    silent    boolean NOT NULL DEFAULT false,  -- it was called and did not answer in time: it is passed over
    PRIMARY KEY (resource, arrival)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- The tombstones: requests of these owners are refused.
CREATE TABLE IF NOT EXISTS leasehold.grave (
    resource bigint NOT NULL,
    owner    bytea NOT NULL,
    ends     timestamptz NOT NULL,
    evicted  boolean NOT NULL,                 -- by an operator; otherwise its owner cancelled the claim
    PRIMARY KEY (owner, resource)
);

-- Clients to notify of the next change of a resource, because a claim of theirs waits without a place in the queue. A row
-- is deleted when its client is notified.
CREATE TABLE IF NOT EXISTS leasehold.watcher (
    resource bigint NOT NULL,
    client   text NOT NULL,
    ends     timestamptz NOT NULL,
    PRIMARY KEY (resource, client)
);

-- The audit trail: the last ten thousand commands of operators.
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

-- Not IF NOT EXISTS: that locks the table against writes even if the index exists. Requests of other clients would wait for
-- this script, and could deadlock with it.
DO $$ BEGIN
    -- Fails if `columns.sql` could not add the columns: then the functions must stay as they are.
    PERFORM look_at FROM leasehold.resource LIMIT 0;
    PERFORM silent FROM leasehold.place LIMIT 0;
    IF to_regclass('leasehold.seat_end') IS NULL THEN
        CREATE INDEX seat_end ON leasehold.seat (resource, ends);
    END IF;
    IF to_regclass('leasehold.place_owner') IS NULL THEN
        CREATE UNIQUE INDEX place_owner ON leasehold.place (owner, resource);
    END IF;
    IF to_regclass('leasehold.place_end') IS NULL THEN
        CREATE INDEX place_end ON leasehold.place (resource, ends);
    END IF;
    IF to_regclass('leasehold.place_live') IS NULL THEN
        -- On `resource + 0`, so that no plan reads the queue by its primary key, and with it all silent places.
        CREATE INDEX place_live ON leasehold.place ((resource + 0), arrival) WHERE NOT silent;
        CREATE INDEX place_silent ON leasehold.place ((resource + 0)) WHERE silent;
    END IF;
    IF to_regclass('leasehold.grave_end') IS NULL THEN
        CREATE INDEX grave_end ON leasehold.grave (resource, ends);
    END IF;
END $$;
