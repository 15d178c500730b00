-- The clock of a server, and whether it takes writes: see nodes.rs.
--
-- takes  $1 the request id
-- gives  the time in microseconds, whether it is a standby, whether it is set to read only, the request id
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_is_in_recovery(),
    current_setting('default_transaction_read_only') = 'on', $1::bigint
