-- The trigger that refuses TRUNCATE, on a table and on each of its partitions: partitions do not inherit it.
--
-- {table}     the table with its schema, quoted
-- {template}  the template for the resource of a row, as a literal

CREATE TRIGGER zz_leasehold_fence_truncate BEFORE TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold_fence.guard({template});
