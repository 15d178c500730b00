-- What the server is, and how far it can be trusted.
--
-- gives  its version as a number, whether it is a standby, fsync, full_page_writes, the names of the synchronous
--        standbys, how many standbys follow at the moment, how many of them are known to be asynchronous, the isolation
--        of transactions
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup' AND sync_state = 'async'),
    current_setting('transaction_isolation')
