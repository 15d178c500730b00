-- The state of the server: version, role in replication, settings that decide what a commit is worth.
--
-- takes  $1 the request id
-- gives  version as a number, whether it is a standby, fsync, full_page_writes, synchronous_standby_names, the number of
--        standbys at the moment, the number of those that are known to be asynchronous, the isolation level, the process
--        that executes this statement (ADR 0034), the request id
WITH standby AS (
    -- Backups, archives and logical decoding also receive the log, but nobody fails over to them.
    SELECT sync_state FROM pg_stat_replication
    WHERE state IS DISTINCT FROM 'backup' AND coalesce(application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal')
        AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = pid AND slot_type = 'logical')
)
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM standby),
    (SELECT count(*) FROM standby WHERE sync_state = 'async'),
    current_setting('transaction_isolation'), pg_backend_pid(), $1::bigint
