-- name: partition_list :many PartitionRow
-- Lists the partitions of the tables that a run owns, with their bounds as text.
-- Invariants: none. Locks: none. Index: catalogue.
select
    p.relname::text as parent,
    c.relname::text as name,
    pg_get_expr(c.relpartbound, c.oid) as bound
from pg_inherits as i
inner join pg_class as p on p.oid = i.inhparent
inner join pg_class as c on c.oid = i.inhrelid
where p.relnamespace = current_schema()::regnamespace and p.relname = any(%(parents)s::text [])
order by p.relname, c.relname;

-- name: clock :one ClockRow
-- Tells the database's time, and proves that it takes writes.
-- Invariants: INV-08. Locks: none. Index: none.
select
    now() as now,
    pg_is_in_recovery() or current_setting('transaction_read_only') = 'on' as read_only;
