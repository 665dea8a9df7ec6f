-- name: transaction_mark :one TransactionMark
-- Names the transaction that runs, before it is committed; null if it has written nothing.
select pg_current_xact_id_if_assigned()::text as xid;

-- name: transaction_fate :one TransactionFate
-- Tells what became of a transaction: committed, aborted, in progress, or null if it is too old. An
-- id that was never given out is an error (22023).
select pg_xact_status(%(xid)s::text::xid8) as status;

-- name: server_incarnation :one ServerIncarnation
-- Tells which life of a server this is. Its own processes have no database, and their ids are shown
-- to every role; a crash replaces all of them.
select
    pg_postmaster_start_time() as started_at,
    array(
        select pid from pg_stat_activity where datid is null order by pid
    ) as own_pids;
