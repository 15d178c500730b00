-- The tables that share rows with a table: partitioned tables above it, its partitions, tables that inherit from it.
--
-- $1     the table with its schema, quoted
-- Rows   the name of the related table, as $1 is written; its relation: parent ($1 is a partition of it), partition (it is
--        a partition of $1), child (it inherits from $1)

WITH RECURSIVE below (oid) AS (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = $1::text::regclass
  UNION
  SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid
), related (oid, relation) AS (
  SELECT relid, 'parent' FROM pg_partition_ancestors($1::text::regclass) relid WHERE relid <> $1::text::regclass
  UNION ALL
  SELECT c.oid, CASE WHEN c.relispartition THEN 'partition' ELSE 'child' END FROM below JOIN pg_class c USING (oid)
)
SELECT format('%I.%I', n.nspname, c.relname), related.relation
  FROM related JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') ORDER BY 1
