-- Columns and indexes that the tables of an earlier revision do not have.
--
-- To add a column, PostgreSQL locks the table against everything else, though only for a moment: no row is written again. Each
-- table has a transaction of its own. A transaction that has locked two tables could deadlock with a verb, which uses the same
-- two in another order. And if a table is in use by a long transaction, this gives up, so that the verbs behind it do not
-- wait for as long. `:lock` is put in before this is executed.

BEGIN;
SELECT pg_advisory_xact_lock(:lock);
SET LOCAL lock_timeout = '2s';
DO $$ BEGIN
    IF to_regclass('leasehold.resource') IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = to_regclass('leasehold.resource') AND attname = 'look_at')
    THEN
        ALTER TABLE leasehold.resource ADD COLUMN look_at timestamptz NOT NULL DEFAULT 'infinity';
    END IF;
END $$;
COMMIT;

BEGIN;
SELECT pg_advisory_xact_lock(:lock);
SET LOCAL lock_timeout = '2s';
DO $$ BEGIN
    IF to_regclass('leasehold.place') IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = to_regclass('leasehold.place') AND attname = 'silent')
    THEN
        ALTER TABLE leasehold.place ADD COLUMN client_id bigint, ADD COLUMN listener integer,
            ADD COLUMN heard_at timestamptz NOT NULL DEFAULT now(), ADD COLUMN called_at timestamptz,
            ADD COLUMN silent boolean NOT NULL DEFAULT false;
        CREATE INDEX place_live ON leasehold.place ((resource + 0), arrival) WHERE NOT silent;
        CREATE INDEX place_silent ON leasehold.place ((resource + 0)) WHERE silent;
    END IF;
END $$;
COMMIT;
