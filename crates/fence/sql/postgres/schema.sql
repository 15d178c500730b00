-- The fence of a PostgreSQL database, in the schema leasehold_fence. This script can be executed again.
--
-- mark    the highest token admitted for each resource
-- audit   the rebases: operator, resource, time and reason
-- format  the version of these tables
--
-- The functions run with the rights of the role that created them (SECURITY DEFINER), so the roles that are fenced need no
-- rights to the marks and cannot change them. admit, enter and guard are for the roles that they are granted to: a role that
-- can call one of them can raise any mark, if need be by a table and a trigger of its own. rebase is for the role that
-- created the schema.
--
-- Errors: LH001 stale token   LH002 token of the backend before a rebase   LH003 no pass was shown
--         LH004 invalid argument   LH005 TRUNCATE of a fenced table
--         For LH001 and LH002 the DETAIL has the numbers: "presented=33 highest=34", "presented=99 ceiling=50".

-- Only one session at a time: CREATE ... IF NOT EXISTS fails if two sessions run it at the same time.
SELECT pg_advisory_xact_lock(7378697629483820646);

CREATE SCHEMA IF NOT EXISTS leasehold_fence;
GRANT USAGE ON SCHEMA leasehold_fence TO PUBLIC;

CREATE TABLE IF NOT EXISTS leasehold_fence.format (version int NOT NULL);
GRANT SELECT ON leasehold_fence.format TO PUBLIC;
INSERT INTO leasehold_fence.format (version) SELECT 1 WHERE NOT EXISTS (SELECT FROM leasehold_fence.format);

-- Marks are updated again and again: the fillfactor leaves room on each page, so that updates stay there.
CREATE TABLE IF NOT EXISTS leasehold_fence.mark (
  resource text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  owner text,
  ceiling bigint,
  raised_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS leasehold_fence.audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  by text NOT NULL,
  role text NOT NULL DEFAULT session_user,
  why text NOT NULL,
  resource text NOT NULL,
  was bigint,
  now bigint NOT NULL,
  ceiling bigint
);

-- Checks the parts of a pass before they are compared with a mark.
CREATE OR REPLACE FUNCTION leasehold_fence.check_pass(resource text, token bigint, owner text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF resource ~ '^\d+ (-|[0-9a-f]{32}) ' THEN
    RAISE EXCEPTION 'this is a whole pass, not a resource: call the function with the pass as its only argument' USING ERRCODE = 'LH004';
  END IF;
  IF resource IS NULL OR resource !~ '^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}/[^[:cntrl:]]+$'
     OR octet_length(resource) - strpos(resource, '/') > 256 THEN
    RAISE EXCEPTION '% is not a resource: write kind/id, as in order/42', coalesce(quote_literal(left(resource, 40)), 'null')
      USING ERRCODE = 'LH004';
  END IF;
  IF token IS NULL OR token NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION '% is not a fencing token: 1 to 2^53 - 1', coalesce(token::text, 'null') USING ERRCODE = 'LH004';
  END IF;
  IF owner !~ '^[0-9a-f]{32}$' THEN
    RAISE EXCEPTION 'an owner is shown as a hash of 32 lower-case hex digits' USING ERRCODE = 'LH004';
  END IF;
END $$;

-- Refuses the key of a resource where its text is wanted. Their marks would be different, and the fence would protect nothing.
--
-- A text counts as a key if its id has only characters of a key, and an escape for a character that a key cannot have. The id
-- of a resource may look like that, too: such a resource is shown in the text of a pass, where there is no doubt.
CREATE OR REPLACE FUNCTION leasehold_fence.check_not_key(resource text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  id text := substr(resource, strpos(resource, '/') + 1);
BEGIN
  IF id ~ '^([A-Za-z0-9.:@+=,_-]|%[0-9A-F]{2})*$' AND id ~ '%'
     AND id !~ '%(2[B-E]|3[0-9AD]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A]|[01][0-9A-F]|7F)' THEN
    RAISE EXCEPTION '% is the key of a resource: pass the text of the pass instead, as the only argument', quote_literal(left(resource, 40))
      USING ERRCODE = 'LH004', HINT = 'In Rust: pass.to_string(), not resource.key(). In a shell: $LEASEHOLD_PASS.';
  END IF;
END $$;

-- The parts of a pass, from its text: TOKEN OWNER RESOURCE, with - for no owner.
CREATE OR REPLACE FUNCTION leasehold_fence.parts_of(pass text, OUT resource text, OUT token bigint, OUT owner text)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  parts text[] := regexp_match(pass, '^(\d{1,16}) (-|[0-9a-f]{32}) (.+)$');
BEGIN
  IF parts IS NULL THEN
    RAISE EXCEPTION 'this is not a pass: a pass is TOKEN OWNER RESOURCE, as in 34 - order/42'
      USING ERRCODE = 'LH004', HINT = 'In Rust: pass.to_string(), not resource.to_string(). In a shell: $LEASEHOLD_PASS.';
  END IF;
  resource := parts[3];
  token := parts[1]::bigint;
  owner := nullif(parts[2], '-');
END $$;

-- The rule. Returns true if the token is the highest so far and was stored, false if the same owner shows it again.
--
-- The row of the mark stays locked until the transaction ends, so no other token is admitted between the check and the
-- effect. Without an owner, the transaction counts as the owner: its own statements are admitted again, and a second
-- transaction with the same token is refused. ADR 0027.
CREATE OR REPLACE FUNCTION leasehold_fence.judge(resource text, token bigint, owner text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seen leasehold_fence.mark;
  whose text := coalesce(judge.owner, 'transaction ' || pg_current_xact_id()::text);
BEGIN
  LOOP
    SELECT m.* INTO seen FROM leasehold_fence.mark m WHERE m.resource = judge.resource FOR UPDATE;
    -- The most frequent case, each row of a large statement, comes first. A pass that equals a mark needs no check.
    IF seen.token = judge.token AND seen.owner = whose AND (seen.ceiling IS NULL OR judge.token < seen.ceiling) THEN
      RETURN false;
    END IF;
    PERFORM leasehold_fence.check_pass(judge.resource, judge.token, judge.owner);
    EXIT WHEN seen.token IS NOT NULL;
    INSERT INTO leasehold_fence.mark AS m (resource, token, owner) VALUES (judge.resource, judge.token, whose)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN true; END IF;
    -- Another session inserted the mark first: read it.
  END LOOP;
  IF judge.token >= seen.ceiling THEN
    RAISE EXCEPTION '%: token % was issued by the backend before the rebase: tokens from % on are refused', judge.resource, judge.token, seen.ceiling
      USING ERRCODE = 'LH002', DETAIL = format('presented=%s ceiling=%s', judge.token, seen.ceiling);
  ELSIF judge.token > seen.token THEN
    UPDATE leasehold_fence.mark m SET token = judge.token, owner = whose, raised_at = clock_timestamp() WHERE m.resource = judge.resource;
    RETURN true;
  END IF;
  RAISE EXCEPTION '%: token % is stale: % has been seen', judge.resource, judge.token, seen.token
    USING ERRCODE = 'LH001', DETAIL = format('presented=%s highest=%s', judge.token, seen.token),
          HINT = 'Someone else was granted the resource since. Stop; do not try again with this token.';
END $$;

-- Admits a pass, or refuses it. The text of the pass is the one argument: SELECT leasehold_fence.admit('34 - order/42').
CREATE OR REPLACE FUNCTION leasehold_fence.admit(pass text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  shown record := leasehold_fence.parts_of(admit.pass);
BEGIN
  RETURN leasehold_fence.judge(shown.resource, shown.token, shown.owner);
END $$;

-- The same, for a pass in its parts.
CREATE OR REPLACE FUNCTION leasehold_fence.admit(resource text, token bigint, owner text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM leasehold_fence.check_not_key(admit.resource);
  RETURN leasehold_fence.judge(admit.resource, admit.token, admit.owner);
END $$;

-- Admits a pass as admit does, and shows it to the triggers for the rest of the transaction.
CREATE OR REPLACE FUNCTION leasehold_fence.enter(pass text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  raised boolean := leasehold_fence.admit(enter.pass);
BEGIN
  PERFORM set_config('leasehold.pass', concat_ws(E'\n', nullif(current_setting('leasehold.pass', true), ''), enter.pass), true);
  RETURN raised;
END $$;

CREATE OR REPLACE FUNCTION leasehold_fence.enter(resource text, token bigint, owner text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM leasehold_fence.check_not_key(enter.resource);
  PERFORM leasehold_fence.check_pass(enter.resource, enter.token, enter.owner);
  RETURN leasehold_fence.enter(format('%s %s %s', enter.token, coalesce(enter.owner, '-'), enter.resource));
END $$;

-- The resource of a row: the template with the values of the row's columns put in.
CREATE OR REPLACE FUNCTION leasehold_fence.resource_of(template text, fields jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  pieces text[] := string_to_array(template, '{');
  name text := pieces[1];
  field text;
BEGIN
  FOR i IN 2 .. cardinality(pieces) LOOP
    field := split_part(pieces[i], '}', 1);
    IF fields ->> field IS NULL THEN
      RAISE EXCEPTION 'the column % of the row is %: it belongs to no resource', quote_ident(field),
        CASE WHEN fields ? field THEN 'null' ELSE 'not there' END USING ERRCODE = 'LH004';
    END IF;
    name := name || (fields ->> field) || substr(pieces[i], length(field) + 2);
  END LOOP;
  RETURN name;
END $$;

-- The columns of a row that a template names, as JSON. Used for rows with user-defined types: to_jsonb of the whole row
-- could call a cast that another role wrote, with the rights of the role that created this schema. A value of such a type is
-- taken as its text.
CREATE OR REPLACE FUNCTION leasehold_fence.fields_of(template text, target oid, fields anyelement) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
  found jsonb := '{}';
  col name;
  own boolean;
  field jsonb;
BEGIN
  FOR col, own IN
    SELECT a.attname, (
      WITH RECURSIVE base AS (
        SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typbasetype FROM pg_type t JOIN base ON t.oid = base.typbasetype
      ) SELECT base.oid < 16384 FROM base WHERE base.typbasetype = 0)
      FROM pg_attribute a
     WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped AND strpos(template, '{' || a.attname || '}') > 0
  LOOP
    EXECUTE format(CASE WHEN own THEN 'SELECT to_jsonb(($1).%1$I)'
                        ELSE 'SELECT CASE WHEN ($1).%1$I IS NOT NULL THEN to_jsonb(format(''%%s'', ($1).%1$I)) END' END, col)
      INTO field USING fields;
    found := found || jsonb_build_object(col, field);
  END LOOP;
  RETURN found;
END $$;

-- A row of this resource is written: finds the pass of the resource among those shown in this transaction, and admits it.
-- The pass that was shown last counts. Only guard calls this, with its own rights and search path.
CREATE OR REPLACE FUNCTION leasehold_fence.demand(target text, resource text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  shown text[] := string_to_array(coalesce(current_setting('leasehold.pass', true), ''), E'\n');
  token text;
  owner text;
BEGIN
  FOR i IN REVERSE cardinality(shown) .. 1 LOOP
    token := split_part(shown[i], ' ', 1);
    owner := split_part(shown[i], ' ', 2);
    IF substr(shown[i], length(token) + length(owner) + 3) = demand.resource AND token ~ '^[0-9]{1,16}$' THEN
      PERFORM leasehold_fence.judge(demand.resource, token::bigint, nullif(owner, '-'));
      RETURN;
    END IF;
  END LOOP;
  -- No pass is for this row. If one is malformed, say so.
  IF EXISTS (SELECT FROM unnest(shown) line WHERE trim(line) <> '' AND line !~ '^\d{1,16} (-|[0-9a-f]{32}) .+$') THEN
    RAISE EXCEPTION 'leasehold.pass does not hold a pass: write TOKEN OWNER RESOURCE, as in 34 - order/42' USING ERRCODE = 'LH004';
  END IF;
  RAISE EXCEPTION '%: a write to % needs its pass, and none was shown', target, demand.resource
    USING ERRCODE = 'LH003', HINT = format('In the same transaction, first: SELECT set_config(''leasehold.pass'', %L, true)', 'TOKEN OWNER ' || demand.resource);
END $$;

-- The trigger. Its one argument is the template. A row that moves to another resource needs the passes of both.
CREATE OR REPLACE FUNCTION leasehold_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  target text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
  -- Object ids from 16384 on belong to user-defined types.
  plain boolean := NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID AND attnum > 0 AND atttypid >= 16384);
  old_name text;
  new_name text;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION '% is fenced, and TRUNCATE names no resource: delete its rows, or remove the fence first', target USING ERRCODE = 'LH005';
  END IF;
  IF TG_OP <> 'INSERT' THEN
    old_name := leasehold_fence.resource_of(TG_ARGV[0],
      CASE WHEN plain THEN to_jsonb(OLD) ELSE leasehold_fence.fields_of(TG_ARGV[0], TG_RELID, OLD) END);
    PERFORM leasehold_fence.demand(target, old_name);
  END IF;
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  new_name := leasehold_fence.resource_of(TG_ARGV[0],
      CASE WHEN plain THEN to_jsonb(NEW) ELSE leasehold_fence.fields_of(TG_ARGV[0], TG_RELID, NEW) END);
  IF new_name IS DISTINCT FROM old_name THEN
    PERFORM leasehold_fence.demand(target, new_name);
  END IF;
  RETURN NEW;
END $$;

-- Moves a mark to the numbers of another backend: up without a ceiling, down with one. Returns the mark before. ADR 0028.
CREATE OR REPLACE FUNCTION leasehold_fence.rebase(resource text, highest bigint, ceiling bigint, by text, why text) RETURNS leasehold_fence.mark
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seen leasehold_fence.mark;
  former bigint;
  edge bigint := rebase.ceiling;
BEGIN
  PERFORM leasehold_fence.check_pass(rebase.resource, rebase.highest, NULL);
  SELECT m.* INTO seen FROM leasehold_fence.mark m WHERE m.resource = rebase.resource FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION '%: the fence has no mark for it: there is nothing to move', rebase.resource USING ERRCODE = 'LH004';
  END IF;
  former := coalesce(seen.ceiling, seen.token);
  IF rebase.highest >= former THEN
    IF edge IS NOT NULL THEN
      RAISE EXCEPTION '% is not below %: moving up needs no ceiling', rebase.highest, former USING ERRCODE = 'LH004';
    END IF;
  ELSE
    IF rebase.highest < seen.token THEN
      IF edge IS NULL AND seen.ceiling IS NOT NULL THEN
        RAISE EXCEPTION 'the mark was moved before, and tokens up to % were admitted since: give the ceiling explicitly', seen.token USING ERRCODE = 'LH004';
      END IF;
      former := seen.token;
    END IF;
    edge := coalesce(edge, seen.ceiling, rebase.highest + (former - rebase.highest + 1) / 2);
    IF edge <= rebase.highest OR edge > former THEN
      RAISE EXCEPTION 'the ceiling must be above %, the new mark, and at most %, the old one', rebase.highest, former USING ERRCODE = 'LH004';
    END IF;
  END IF;
  UPDATE leasehold_fence.mark m SET token = rebase.highest, owner = NULL, ceiling = edge, raised_at = clock_timestamp()
   WHERE m.resource = rebase.resource;
  INSERT INTO leasehold_fence.audit (by, why, resource, was, now, ceiling)
  VALUES (rebase.by, rebase.why, rebase.resource, seen.token, rebase.highest, edge);
  RETURN seen;
END $$;

REVOKE ALL ON FUNCTION leasehold_fence.judge(text, bigint, text), leasehold_fence.admit(text), leasehold_fence.admit(text, bigint, text),
  leasehold_fence.enter(text), leasehold_fence.enter(text, bigint, text), leasehold_fence.guard(), leasehold_fence.demand(text, text),
  leasehold_fence.rebase(text, bigint, bigint, text, text) FROM PUBLIC;
