-- The tables whose rows are also the rows of this one, or the other way round.
--
-- $1     the table with its schema, quoted
-- Rows   a table, as $1 is; and what it is: whole (this is a partition of it), part (a partition of this), child (it
--        inherits from this)

WITH RECURSIVE below (oid) AS (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = $1::text::regclass
  UNION
  SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid
), kin (oid, kinship) AS (
  SELECT relid, 'whole' FROM pg_partition_ancestors($1::text::regclass) relid WHERE relid <> $1::text::regclass
  UNION ALL
  SELECT c.oid, CASE WHEN c.relispartition THEN 'part' ELSE 'child' END FROM below JOIN pg_class c USING (oid)
)
SELECT format('%I.%I', n.nspname, c.relname), kin.kinship
  FROM kin JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') ORDER BY 1
