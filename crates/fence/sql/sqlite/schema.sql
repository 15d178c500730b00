-- The fence of a SQLite database: marks, and the pass that a transaction shows to the triggers.
--
-- leasehold_fence_mark   the highest token admitted for each resource
-- leasehold_fence_pass   what this transaction shows. A row here cannot be committed: it refers, deferred, to a row that
--                        can never be, so COMMIT fails until the pass is taken away. What is shown ends with its
--                        transaction, as it must.
-- leasehold_fence_audit  who rebased what, when and why
-- leasehold_fence_format the version of all this
--
-- Everything can be run again. Plain SQLite from 3.24 on reads it.

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

-- Without an owner, this one showing is its own owner: it holds for its transaction, and a second one is refused.
CREATE TABLE IF NOT EXISTS leasehold_fence_pass (
  resource TEXT PRIMARY KEY NOT NULL,
  token INTEGER NOT NULL,
  owner TEXT,
  nonce TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  ends INTEGER NOT NULL DEFAULT 1 REFERENCES leasehold_fence_never (id) DEFERRABLE INITIALLY DEFERRED
) WITHOUT ROWID;

-- Showing a pass is entering: the rule is applied here, before anything is read or written.
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
  -- Not an upsert: whatever INSERT OR ... showed the pass would decide its conflicts.
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
