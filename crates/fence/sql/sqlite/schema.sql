-- The fence of a SQLite database: the marks, and the pass that a transaction shows to the triggers. ADR 0027.
--
-- leasehold_fence_mark   the highest token admitted for each resource
-- leasehold_fence_pass   the passes that this transaction shows. A row here cannot be committed: it has a deferred foreign
--                        key to a row of leasehold_fence_never, which can have no rows. So COMMIT fails until the pass is
--                        deleted, and no pass outlives its transaction.
-- leasehold_fence_audit  the rebases: operator, resource, time and reason
-- leasehold_fence_format the version of these tables
--
-- This script can be executed again. It needs SQLite 3.24 or later, without extensions.
-- The text of a trigger is stored when it is created and not replaced later: the program reads the error texts below.

CREATE TABLE IF NOT EXISTS leasehold_fence_format (version INTEGER NOT NULL);
INSERT INTO leasehold_fence_format (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence_format);

CREATE TABLE IF NOT EXISTS leasehold_fence_mark (
  resource TEXT PRIMARY KEY NOT NULL,
  token INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  owner TEXT,
  ceiling INTEGER
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS leasehold_fence_audit (
  id INTEGER PRIMARY KEY,
  at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  by TEXT NOT NULL,
  why TEXT NOT NULL,
  resource TEXT NOT NULL,
  was INTEGER,
  now INTEGER NOT NULL,
  ceiling INTEGER
);

CREATE TABLE IF NOT EXISTS leasehold_fence_never (id INTEGER PRIMARY KEY CHECK (0));

-- Without an owner, the nonce counts as the owner: the pass is valid for its transaction, and a second one with the same
-- token is refused.
CREATE TABLE IF NOT EXISTS leasehold_fence_pass (
  resource TEXT PRIMARY KEY NOT NULL,
  token INTEGER NOT NULL,
  owner TEXT,
  nonce TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  ends INTEGER NOT NULL DEFAULT 1 REFERENCES leasehold_fence_never (id) DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID;

-- Inserting a pass applies the rule, before anything is read or written under it.
CREATE TRIGGER IF NOT EXISTS leasehold_fence_enter BEFORE INSERT ON leasehold_fence_pass
BEGIN
  SELECT RAISE(ABORT, 'leasehold: turn foreign keys on (PRAGMA foreign_keys = ON), else a pass could outlive its transaction')
   WHERE (SELECT foreign_keys FROM pragma_foreign_keys) = 0;
  SELECT RAISE(ABORT, 'leasehold: a token is a whole number from 1 to 2^53 - 1')
   WHERE typeof(NEW.token) <> 'integer' OR NEW.token NOT BETWEEN 1 AND 9007199254740991;
  SELECT RAISE(ABORT, 'leasehold: an owner is shown as a hash of 32 lower-case hex digits')
   WHERE NEW.owner IS NOT NULL AND (length(NEW.owner) <> 32 OR NEW.owner GLOB '*[^0-9a-f]*');
  SELECT RAISE(ABORT, 'leasehold: a pass ends with its transaction')
   WHERE NEW.ends <> 1;
  SELECT RAISE(ABORT, 'leasehold: former token: it is of the backend before the rebase')
    FROM leasehold_fence_mark WHERE resource = NEW.resource AND NEW.token >= ceiling;
  SELECT RAISE(ABORT, 'leasehold: stale token: a higher one has been seen, or this one from someone else')
    FROM leasehold_fence_mark WHERE resource = NEW.resource
     AND NOT (NEW.token > token OR NEW.token = token AND owner IS NOT NULL AND owner = coalesce(NEW.owner, NEW.nonce));
END;
CREATE TRIGGER IF NOT EXISTS leasehold_fence_entered AFTER INSERT ON leasehold_fence_pass
BEGIN
  -- Not an upsert: in a trigger, the OR clause of the outer INSERT would decide about its conflicts.
  UPDATE leasehold_fence_mark SET token = NEW.token, owner = coalesce(NEW.owner, NEW.nonce)
   WHERE resource = NEW.resource AND token < NEW.token;
  INSERT INTO leasehold_fence_mark (resource, token, owner)
  SELECT NEW.resource, NEW.token, coalesce(NEW.owner, NEW.nonce)
   WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence_mark WHERE resource = NEW.resource);
END;
CREATE TRIGGER IF NOT EXISTS leasehold_fence_as_shown BEFORE UPDATE ON leasehold_fence_pass
BEGIN
  SELECT RAISE(ABORT, 'leasehold: a pass is not changed: take it away and show another');
END;
