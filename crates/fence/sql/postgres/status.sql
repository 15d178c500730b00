-- The fenced tables: those with a row trigger of the fence that is not inherited from a partitioned table.
--
-- Rows   the table with its schema, quoted; the template for the resource of a row; whether all inserts, updates and
--        deletes fire the trigger, on every partition; the names of those tables, among the table and its partitions, for
--        which TRUNCATE is not refused

SELECT format('%I.%I', s.nspname, c.relname),
       convert_from(substr(t.tgargs, 1, length(t.tgargs) - 1), getdatabaseencoding()),
       t.tgenabled IN ('O', 'A') AND t.tgtype & 28 = 28 AND t.tgqual IS NULL AND t.tgattr = ''::int2vector
         AND NOT EXISTS (
           SELECT FROM pg_partition_tree(c.oid) part JOIN pg_trigger copy ON copy.tgrelid = part.relid
            WHERE copy.tgfoid = t.tgfoid AND copy.tgparentid <> 0 AND copy.tgenabled NOT IN ('O', 'A')),
       ARRAY(
         SELECT format('%I.%I', ps.nspname, pc.relname)
           FROM (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) part (oid)
           JOIN pg_class pc USING (oid) JOIN pg_namespace ps ON ps.oid = pc.relnamespace
          WHERE pc.relkind IN ('r', 'p') AND NOT EXISTS (
            SELECT FROM pg_trigger g WHERE g.tgrelid = pc.oid AND g.tgfoid = t.tgfoid AND g.tgtype & 32 = 32
               AND g.tgenabled IN ('O', 'A') AND g.tgqual IS NULL)
          ORDER BY 1)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace s ON s.oid = c.relnamespace
  JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'leasehold_fence' AND p.proname = 'guard' AND t.tgnargs = 1 AND t.tgtype & 1 = 1 AND t.tgparentid = 0
 ORDER BY 1
