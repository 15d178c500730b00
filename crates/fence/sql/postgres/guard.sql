-- The triggers on one table. The name sorts last, so that they see the row as other triggers leave it.
--
-- {table}     the table with its schema, quoted
-- {template}  how the resource of a row is named, as a literal

DROP TRIGGER IF EXISTS zz_leasehold_fence ON {table};
DROP TRIGGER IF EXISTS zz_leasehold_fence_truncate ON {table};
CREATE TRIGGER zz_leasehold_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard({template});
CREATE TRIGGER zz_leasehold_fence_truncate BEFORE TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold_fence.guard({template});
