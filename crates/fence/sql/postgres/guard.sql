-- The trigger on one table. PostgreSQL runs triggers in the order of their names: this name sorts last, so that it sees the
-- row as other triggers leave it. Partitions inherit it from the partitioned table.
--
-- {table}     the table with its schema, quoted
-- {template}  the template for the resource of a row, as a literal

CREATE TRIGGER zz_leasehold_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard({template});
