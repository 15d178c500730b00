-- The trigger on one table. The name sorts last, so that it sees the row as other triggers leave it. Partitions have it
-- from the whole.
--
-- {table}     the table with its schema, quoted
-- {template}  how the resource of a row is named, as a literal

CREATE TRIGGER zz_leasehold_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard({template});
