-- The trigger against TRUNCATE, on a table and on each of its partitions: they do not have it from the whole.
--
-- {table}     the table with its schema, quoted
-- {template}  how the resource of a row is named, as a literal

CREATE TRIGGER zz_leasehold_fence_truncate BEFORE TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold_fence.guard({template});
