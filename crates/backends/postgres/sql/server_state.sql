-- What the server is, and how far it can be trusted.
--
-- takes  $1 the request id
-- gives  its version as a number, whether it is a standby, fsync, full_page_writes, the names of the synchronous
--        standbys, how many standbys follow at the moment, how many of them are known to be asynchronous, the isolation
--        of transactions, the process that executes this, the request id
WITH standby AS (
    -- Nobody fails over to a backup, to an archive, or to one who decodes.
    SELECT sync_state FROM pg_stat_replication
    WHERE state IS DISTINCT FROM 'backup' AND coalesce(application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal')
        AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = pid AND slot_type = 'logical')
)
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM standby),
    (SELECT count(*) FROM standby WHERE sync_state = 'async'),
    current_setting('transaction_isolation'), pg_backend_pid(), $1::bigint
