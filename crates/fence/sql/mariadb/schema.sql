-- The fence of a MariaDB server, in the database leasehold_fence. This script can be executed again. MariaDB 10.6 or later.
--
-- mark    the highest token admitted for each resource
-- audit   the rebases: operator, resource, time and reason
-- format  the version of these tables
--
-- A pass is given as its text: TOKEN OWNER RESOURCE, with - for no owner, as in '34 - order/42'.
--
-- The procedures run with the rights of the user who created them, so the users who are fenced need no rights to the marks and
-- cannot change them. Allow a user to present passes: GRANT EXECUTE ON PROCEDURE leasehold_fence.admit TO app, and the same
-- for enter. rebase is for operators.
--
-- Errors (SQLSTATE): LH001 stale token   LH002 token of the backend before a rebase   LH003 no pass was shown
--                    LH004 invalid argument
--                    The message of LH001 and LH002 ends with the numbers: (presented=33 highest=34), (presented=99 ceiling=50).
--
-- An error does not roll the transaction back: the client must do so.

DELIMITER //

CREATE DATABASE IF NOT EXISTS leasehold_fence CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
//

CREATE TABLE IF NOT EXISTS leasehold_fence.format (version INT NOT NULL) ENGINE = InnoDB
//

INSERT INTO leasehold_fence.format (version)
SELECT 1 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence.format)
//

-- The collation compares byte for byte, and trailing spaces count.
CREATE TABLE IF NOT EXISTS leasehold_fence.mark (
  resource VARCHAR(386) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  owner VARCHAR(80),
  ceiling BIGINT,
  raised_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
//

CREATE TABLE IF NOT EXISTS leasehold_fence.audit (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  by_whom TEXT NOT NULL,
  why TEXT NOT NULL,
  resource VARCHAR(386) NOT NULL,
  was BIGINT NOT NULL,
  now BIGINT NOT NULL,
  ceiling BIGINT
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
//

-- A name for the current transaction of this session. MariaDB gives a transaction no id that its user may read, so the
-- statements that begin and end transactions are counted: the count changes when the transaction ends.
CREATE OR REPLACE FUNCTION leasehold_fence.transaction_name() RETURNS VARCHAR(80) NOT DETERMINISTIC READS SQL DATA
BEGIN
  IF @leasehold_session IS NULL THEN
    SET @leasehold_session = UUID();
  END IF;
  RETURN CONCAT('transaction ', @leasehold_session, ' ', (
    SELECT CAST(SUM(VARIABLE_VALUE) AS INTEGER) FROM information_schema.SESSION_STATUS
     WHERE VARIABLE_NAME IN ('COM_BEGIN', 'COM_COMMIT', 'COM_ROLLBACK')));
END
//

-- The parts of a pass, from its text.
CREATE OR REPLACE PROCEDURE leasehold_fence.parts_of(
  IN pass TEXT, OUT shown_resource VARCHAR(386), OUT shown_token BIGINT, OUT shown_owner VARCHAR(80))
BEGIN
  DECLARE resource TEXT;
  DECLARE id TEXT;
  IF pass IS NULL OR pass NOT REGEXP '^[0-9]{1,16} (-|[0-9a-f]{32}) (?s:.)+$' THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'this is not a pass: give Pass::to_string or $LEASEHOLD_PASS: TOKEN OWNER RESOURCE, as in 34 - order/42';
  END IF;
  SET shown_token = CAST(SUBSTRING_INDEX(pass, ' ', 1) AS INTEGER);
  SET shown_owner = NULLIF(SUBSTRING_INDEX(SUBSTRING_INDEX(pass, ' ', 2), ' ', -1), '-');
  SET resource = SUBSTRING(pass, CHAR_LENGTH(SUBSTRING_INDEX(pass, ' ', 2)) + 2);
  SET id = SUBSTRING(resource, LOCATE('/', resource) + 1);
  IF resource NOT REGEXP '^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}/[^[:cntrl:]]+$' OR LENGTH(id) > 256 THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the pass does not name a resource: write kind/id, as in 34 - order/42';
  END IF;
  IF shown_token NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the pass has no fencing token: 1 to 2^53 - 1';
  END IF;
  SET shown_resource = resource;
END
//

-- The rule. ADR 0027.
--
-- 1. One statement locks the mark, and raises it if the token is higher. The mark stays locked until the transaction ends, so
--    no other token is admitted between the check and the effect.
-- 2. A locking read tells whether the mark is this token of this owner. A plain read could see an old snapshot; it would
--    also fix the snapshot of the transaction before its first read of data.
--
-- Without an owner, the transaction counts as the owner.
CREATE OR REPLACE PROCEDURE leasehold_fence.judge(
  IN shown_resource VARCHAR(386), IN shown_token BIGINT, IN shown_owner VARCHAR(80))
BEGIN
  DECLARE seen_token, seen_ceiling BIGINT;
  DECLARE seen_owner VARCHAR(80);
  DECLARE reason VARCHAR(128);
  DECLARE whose VARCHAR(80) DEFAULT IFNULL(shown_owner, leasehold_fence.transaction_name());
  -- Assignments take effect from left to right: the owner is compared with the old token.
  INSERT INTO leasehold_fence.mark (resource, token, owner) VALUES (shown_resource, shown_token, whose)
  ON DUPLICATE KEY UPDATE
    owner = IF(shown_token > token AND (ceiling IS NULL OR shown_token < ceiling), whose, owner),
    token = IF(shown_token > token AND (ceiling IS NULL OR shown_token < ceiling), shown_token, token);
  SELECT token, owner, ceiling INTO seen_token, seen_owner, seen_ceiling
    FROM leasehold_fence.mark WHERE resource = shown_resource FOR UPDATE;
  IF shown_token >= seen_ceiling THEN
    SET reason = CONCAT(LEFT(shown_resource, 24), ': token of the backend before the rebase (presented=', shown_token, ' ceiling=', seen_ceiling, ')');
    SIGNAL SQLSTATE 'LH002' SET MESSAGE_TEXT = reason;
  END IF;
  IF NOT (seen_token = shown_token AND seen_owner <=> whose) THEN
    SET reason = CONCAT(LEFT(shown_resource, 40), ': stale token (presented=', shown_token, ' highest=', seen_token, ')');
    SIGNAL SQLSTATE 'LH001' SET MESSAGE_TEXT = reason;
  END IF;
END
//

-- Admits a pass, or refuses it, in the transaction of your effect: CALL leasehold_fence.admit('34 - order/42').
CREATE OR REPLACE PROCEDURE leasehold_fence.admit(IN pass TEXT)
BEGIN
  DECLARE shown_token BIGINT;
  DECLARE shown_resource VARCHAR(386);
  DECLARE shown_owner VARCHAR(80);
  IF @@autocommit AND NOT @@in_transaction THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'no transaction is open, so check and effect are two steps: START TRANSACTION first, or call enter';
  END IF;
  CALL leasehold_fence.parts_of(pass, shown_resource, shown_token, shown_owner);
  CALL leasehold_fence.judge(shown_resource, shown_token, shown_owner);
END
//

-- Admits a pass as admit does, and shows it to the triggers for the rest of the transaction. Without a transaction it only
-- raises the mark.
CREATE OR REPLACE PROCEDURE leasehold_fence.enter(IN pass TEXT)
BEGIN
  DECLARE shown_token BIGINT;
  DECLARE shown_resource VARCHAR(386);
  DECLARE shown_owner VARCHAR(80);
  CALL leasehold_fence.parts_of(pass, shown_resource, shown_token, shown_owner);
  CALL leasehold_fence.judge(shown_resource, shown_token, shown_owner);
  -- In a transaction that statement began, or an earlier one. With autocommit it has ended by now.
  IF @@in_transaction THEN
    IF @leasehold_shown_in IS NULL OR @leasehold_shown_in <> leasehold_fence.transaction_name() THEN
      SET @leasehold_shown_in = leasehold_fence.transaction_name(), @leasehold_shown = '';
    END IF;
    -- Not '\n': with NO_BACKSLASH_ESCAPES, that is two characters.
    SET @leasehold_shown = CONCAT(pass, CHAR(10 USING utf8mb4), @leasehold_shown);
  END IF;
END
//

-- A row of this resource is written: finds the pass of the resource among those shown in this transaction, the newest first,
-- and checks that it is the mark. enter has checked its form and locked the mark; only a rollback to a savepoint can have
-- changed the mark since, and then the pass is judged again. Only the triggers call this.
CREATE OR REPLACE PROCEDURE leasehold_fence.demand(IN target TEXT, IN row_resource TEXT)
BEGIN
  DECLARE reason VARCHAR(128);
  DECLARE pass, head, left_over TEXT;
  DECLARE shown_token, seen_token BIGINT;
  DECLARE shown_owner, seen_owner VARCHAR(80);
  DECLARE this_transaction VARCHAR(80) DEFAULT leasehold_fence.transaction_name();
  IF row_resource IS NULL THEN
    SET reason = CONCAT(LEFT(target, 40), ': a column of the row is null: it belongs to no resource');
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = reason;
  END IF;
  IF @leasehold_shown_in = this_transaction THEN
    SET left_over = @leasehold_shown;
  END IF;
  search: WHILE left_over <> '' DO
    SET pass = SUBSTRING_INDEX(left_over, CHAR(10 USING utf8mb4), 1);
    SET left_over = SUBSTRING(left_over, CHAR_LENGTH(pass) + 2);
    SET head = SUBSTRING_INDEX(pass, ' ', 2);
    IF SUBSTRING(pass, CHAR_LENGTH(head) + 2) = row_resource THEN
      LEAVE search;
    END IF;
    SET pass = NULL;
  END WHILE;
  IF pass IS NULL THEN
    SET reason = CONCAT(LEFT(target, 24), ': this row needs the pass of ', LEFT(row_resource, 32), ': CALL leasehold_fence.enter(PASS) first');
    SIGNAL SQLSTATE 'LH003' SET MESSAGE_TEXT = reason;
  END IF;
  SET shown_token = CAST(SUBSTRING_INDEX(head, ' ', 1) AS INTEGER);
  SET shown_owner = NULLIF(SUBSTRING_INDEX(head, ' ', -1), '-');
  SELECT token, owner INTO seen_token, seen_owner FROM leasehold_fence.mark WHERE resource = row_resource FOR UPDATE;
  IF NOT (seen_token <=> shown_token AND seen_owner <=> IFNULL(shown_owner, this_transaction)) THEN
    CALL leasehold_fence.judge(row_resource, shown_token, shown_owner);
  END IF;
END
//

-- Moves a mark to the numbers of another backend: up without a ceiling, down with one. Call it in a transaction. ADR 0028.
CREATE OR REPLACE PROCEDURE leasehold_fence.rebase(
  IN moved_resource VARCHAR(386), IN highest BIGINT, IN new_ceiling BIGINT, IN by_whom TEXT, IN why TEXT)
BEGIN
  DECLARE seen_token, seen_ceiling, former BIGINT;
  DECLARE edge BIGINT DEFAULT new_ceiling;
  DECLARE reason VARCHAR(128);
  SELECT token, ceiling INTO seen_token, seen_ceiling FROM leasehold_fence.mark WHERE resource = moved_resource FOR UPDATE;
  IF seen_token IS NULL THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the fence has no mark for this resource: there is nothing to move';
  END IF;
  IF highest IS NULL OR highest NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the new mark is not a fencing token: 1 to 2^53 - 1';
  END IF;
  SET former = IFNULL(seen_ceiling, seen_token);
  IF highest >= former THEN
    IF edge IS NOT NULL THEN
      SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the new mark is not below the old one: moving up needs no ceiling';
    END IF;
  ELSE
    IF highest < seen_token THEN
      IF edge IS NULL AND seen_ceiling IS NOT NULL THEN
        SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = 'the mark was moved before, and tokens were admitted since: give the ceiling explicitly';
      END IF;
      SET former = seen_token;
    END IF;
    SET edge = COALESCE(edge, seen_ceiling, highest + (former - highest + 1) DIV 2);
    IF edge <= highest OR edge > former THEN
      SET reason = CONCAT('the ceiling must be above ', highest, ', the new mark, and at most ', former, ', the old one');
      SIGNAL SQLSTATE 'LH004' SET MESSAGE_TEXT = reason;
    END IF;
  END IF;
  UPDATE leasehold_fence.mark SET token = highest, owner = NULL, ceiling = edge WHERE resource = moved_resource;
  INSERT INTO leasehold_fence.audit (by_whom, why, resource, was, now, ceiling)
  VALUES (by_whom, why, moved_resource, seen_token, highest, edge);
END
//

DELIMITER ;
