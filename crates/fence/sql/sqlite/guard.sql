-- The triggers on one table: a row can be written only under the pass of its resource.
--
-- {table} {insert} {update} {delete}   the table and the triggers, quoted
-- {old} {new}                           the resource of the row, as an expression
-- {template}                            the template, in a comment that `status` reads
--
-- A row that moves to another resource needs the passes of both. The triggers run AFTER the write, because a new row has no
-- rowid before.

CREATE TRIGGER {insert} AFTER INSERT ON {table} /* leasehold fence: {template} */
BEGIN
  SELECT RAISE(ABORT, 'leasehold: no pass was shown for this row''s resource')
   WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence_pass WHERE resource = {new});
END;
CREATE TRIGGER {update} AFTER UPDATE ON {table} /* leasehold fence: {template} */
BEGIN
  SELECT RAISE(ABORT, 'leasehold: no pass was shown for this row''s resource')
   WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence_pass WHERE resource = {old})
      OR NOT EXISTS (SELECT 1 FROM leasehold_fence_pass WHERE resource = {new});
END;
CREATE TRIGGER {delete} AFTER DELETE ON {table} /* leasehold fence: {template} */
BEGIN
  SELECT RAISE(ABORT, 'leasehold: no pass was shown for this row''s resource')
   WHERE NOT EXISTS (SELECT 1 FROM leasehold_fence_pass WHERE resource = {old});
END;
