-- name: restore_begin :many RestoreRow
-- Begins to hold timers. No row: they are held already. Everything that was handed out until now is
-- void, whatever the clock of the restored database's machine says.
-- Invariants: INV-08. Locks: the unique key. Index: restores_held_unique, sessions_open_idx.
insert into restores (checked_by, data_until, void_until)
select
    %(checked_by)s::text,
    %(data_until)s::timestamptz,
    greatest(
        now(),
        (select max(l.granted_at) from leases as l),
        (select max(s.opened_at) from sessions as s where s.closed_at is null)
    )
on conflict do nothing
returning
    restore_id, checked_at, checked_by, data_until, void_until, session_count, lease_count,
    task_count, released_at, released_by;

-- name: restore_held :many RestoreRow
-- Finds the restore for which timers are held.
-- Invariants: none. Locks: none. Index: restores_held_unique.
select
    r.restore_id,
    r.checked_at,
    r.checked_by,
    r.data_until,
    r.void_until,
    r.session_count,
    r.lease_count,
    r.task_count,
    r.released_at,
    r.released_by
from restores as r
where r.released_at is null;

-- name: restore_note :exec
-- Adds what was voided now, in the transaction that voids it.
-- Invariants: INV-02. Locks: the row. Index: restores_pkey.
update restores
set
    session_count = session_count + %(session_count)s::bigint,
    lease_count = lease_count + %(lease_count)s::bigint,
    task_count = task_count + %(task_count)s::bigint
where restore_id = %(restore_id)s::bigint;

-- name: restore_release :many RestoreRow
-- Lets timers go. No row: they were not held.
-- Invariants: none. Locks: the row. Index: restores_held_unique.
update restores
set
    released_at = now(),
    released_by = %(released_by)s::text
where released_at is null
returning
    restore_id, checked_at, checked_by, data_until, void_until, session_count, lease_count,
    task_count, released_at, released_by;

-- name: restore_data :one RestoreData
-- Says at which moment the data stands, by what was written last. While timers are held it is the
-- moment that the check found, and what was written later, such as the deliveries of what it
-- voided, is left out. Of the deliveries those of the 100,000 newest tasks are looked at: nothing
-- orders them by their end, and servers note each five seconds that sessions are alive.
-- Invariants: none. Locks: none. Index: restores_held_unique, deliveries_pkey, tasks_pkey,
-- sessions_seen_idx.
with bounds as materialized (
    select
        count(*) > 0 as held,
        max(r.data_until) as data_until,
        case
            when count(*) = 0 then 'infinity'::timestamptz
            else coalesce(max(r.data_until), '-infinity'::timestamptz)
        end as until
    from restores as r
    where r.released_at is null
),

newest as materialized (
    select
        (
            select max(e.ended_at)
            from (
                select d.ended_at
                from deliveries as d
                where d.ended_at <= (select b.until from bounds as b)
                order by d.run_id desc, d.task_id desc, d.delivery desc
                limit 100000
            ) as e
        ) as delivery_ended_at,
        (
            select t.enqueued_at
            from tasks as t
            where t.enqueued_at <= (select b.until from bounds as b)
            order by t.run_id desc, t.task_id desc
            limit 1
        ) as task_enqueued_at,
        (
            select max(l.granted_at)
            from leases as l
            where l.granted_at <= (select b.until from bounds as b)
        ) as lease_granted_at,
        (
            select max(s.seen_at)
            from sessions as s
            where s.seen_at <= (select b.until from bounds as b)
        ) as session_seen_at
)
select
    n.delivery_ended_at,
    n.task_enqueued_at,
    n.lease_granted_at,
    n.session_seen_at,
    case
        when b.held then b.data_until
        else greatest(
            n.delivery_ended_at, n.task_enqueued_at, n.lease_granted_at, n.session_seen_at
        )
    end as data_until
from newest as n
cross join bounds as b;

-- name: restore_counts :one RestoreCounts
-- Counts what a restored database holds: what is void of it (all of it, unless `void_until` says
-- until when), what waits for its time, and what of that is due already.
-- Invariants: none. Locks: none. Index: none, it reads whole tables of live rows.
select
    (
        select count(*)
        from sessions as s
        where
            s.closed_at is null
            and s.opened_at <= coalesce(%(void_until)s::timestamptz, 'infinity')
    ) as session_count,
    (
        select count(*)
        from sessions as s
        where s.closed_at is null and s.seen_at > now() - interval '15 seconds'
    ) as present_count,
    (
        select count(*)
        from leases as l
        where l.granted_at <= coalesce(%(void_until)s::timestamptz, 'infinity')
    ) as lease_count,
    (
        select coalesce(sum(l.remaining), 0)
        from leases as l
        where l.granted_at <= coalesce(%(void_until)s::timestamptz, 'infinity')
    )::bigint as task_count,
    (select count(*) from timers) as timer_count,
    (select count(*) from timers as w where w.fire_at <= now()) as timer_due_count,
    (select count(*) from ready_tasks as r where r.deadline_at <= now()) as timeout_due_count;

-- name: restore_ready :many ReadyCount
-- Counts tasks that wait for a worker, by queue.
-- Invariants: none. Locks: none. Index: none, it reads whole tables of live rows.
select
    n.name as namespace,
    l.queue,
    sum(c.ready_count)::bigint as ready_count
from (
    select r.lane_id, count(*) as ready_count
    from ready_tasks as r
    group by r.lane_id
) as c
inner join lanes as l on l.lane_id = c.lane_id
inner join namespaces as n on n.namespace_id = l.namespace_id
group by n.name, l.queue
order by n.name, l.queue;

-- name: restore_session_close :many SessionKey
-- Closes sessions of the time before a restore: no server can hand anything to them afterwards, and
-- their workers cannot resume them.
-- Invariants: INV-04. Locks: the sessions, in order. Index: sessions_open_idx.
with old as materialized (
    select s.session_id
    from sessions as s
    where s.closed_at is null and s.opened_at <= %(void_until)s::timestamptz
    order by s.session_id
    limit %(session_count_max)s::integer
    for update of s
)
update sessions as s
set
    closed_at = now(),
    receiving = false
from old as o
where s.session_id = o.session_id
returning s.session_id::text;

-- name: restore_lease_lock :many LeaseRow
-- Locks leases of the time before a restore, after one of them; also what a working server gave to
-- a session of that time until the session was closed.
-- Invariants: INV-07. Locks: leases by id, FOR UPDATE. Index: leases_pkey, sessions_pkey.
select
    l.lease_id::text,
    l.secret,
    l.session_id::text,
    l.namespace_id,
    l.lane_id,
    l.run_ids::text [],
    l.task_ids::text [],
    l.seqs,
    l.attempts,
    l.deliveries,
    l.ranks,
    l.lost_counts,
    l.total_bys,
    l.started_task_ids::text [],
    l.started_at,
    l.details,
    l.alerted,
    now() as read_at
from leases as l
where
    l.lease_id > %(after)s::uuid
    and (
        l.granted_at <= %(void_until)s::timestamptz
        or exists (
            select 1
            from sessions as s
            where
                s.session_id = l.session_id and s.opened_at <= %(void_until)s::timestamptz
        )
    )
order by l.lease_id
limit %(lease_count_max)s::integer
for update of l;
