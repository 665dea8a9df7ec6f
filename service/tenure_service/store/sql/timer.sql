-- name: timer_fire :many TimerFired
-- Makes tasks ready whose time has come: deletes their timers and inserts them at the end of
-- their lanes, in the order of their times. Those whose total timeout is over are left to
-- waiting_take_overdue. None while timers are held after a restore.
-- Invariants: INV-07, INV-08, INV-12. Locks: timers FOR UPDATE SKIP LOCKED. Index: timers_pkey,
-- restores_held_unique.
with due as materialized (
    select w.ctid as place
    from timers as w
    where
        w.fire_at <= coalesce(%(now)s::timestamptz, now())
        and (w.total_by is null or w.total_by > coalesce(%(now)s::timestamptz, now()))
        and not exists (select 1 from restores as h where h.released_at is null)
    order by w.fire_at, w.timer_id
    limit %(timer_count_max)s::integer
    for update of w skip locked
),
fired as materialized (
    delete from timers as w
    where w.ctid = any(array(select place from due))
    returning
        w.fire_at, w.timer_id, w.run_id, w.task_id, w.lane_id, w.rank, w.attempt, w.delivery,
        w.lost_count, w.total_by, w.start_ms
)
insert into ready_tasks (
    lane_id, rank, run_id, task_id, attempt, delivery, lost_count, total_by, deadline_at
)
select
    lane_id,
    rank,
    run_id,
    task_id,
    attempt,
    delivery,
    lost_count,
    total_by,
    least(total_by, coalesce(%(now)s::timestamptz, now()) + start_ms * interval '1 millisecond')
from fired
order by fire_at, timer_id
returning lane_id, rank;

-- name: waiting_take_overdue :many WaitingOverdue
-- Takes waiting tasks whose timeout is due out of their lanes and off the clock; runs are left to
-- run_take_overdue, since they are locked first. None while timers are held after a restore.
-- Invariants: INV-07, INV-08, INV-12. Locks: the rows FOR UPDATE SKIP LOCKED. Index:
-- ready_tasks_deadline_idx, timers_pkey, restores_held_unique.
with ready as materialized (
    select r.tableoid as part, r.ctid as place
    from ready_tasks as r
    where
        r.deadline_at <= coalesce(%(now)s::timestamptz, now())
        and not exists (select 1 from restores as h where h.released_at is null)
        and exists (select 1 from lanes as l where l.lane_id = r.lane_id and l.app_version = '')
    order by r.deadline_at
    limit %(task_count_max)s::integer
    for update of r skip locked
),
timed as materialized (
    select w.ctid as place
    from timers as w
    where
        w.fire_at <= coalesce(%(now)s::timestamptz, now())
        and w.total_by <= coalesce(%(now)s::timestamptz, now())
        and not exists (select 1 from restores as h where h.released_at is null)
        and exists (select 1 from lanes as l where l.lane_id = w.lane_id and l.app_version = '')
    order by w.fire_at, w.timer_id
    limit %(task_count_max)s::integer
    for update of w skip locked
),
taken as (
    delete from ready_tasks as r
    using ready as x
    where r.tableoid = x.part and r.ctid = x.place
    returning
        r.run_id, r.task_id, r.lane_id, r.rank, r.seq, r.attempt, r.delivery, r.lost_count,
        r.total_by
),
stopped as (
    delete from timers as w
    where w.ctid = any(array(select place from timed))
    returning
        w.run_id, w.task_id, w.lane_id, w.rank, null::bigint as seq, w.attempt, w.delivery,
        w.lost_count, w.total_by
),
overdue as (
    select * from taken
    union all
    select * from stopped
)
select
    o.run_id::text,
    o.task_id::text,
    l.namespace_id,
    o.lane_id,
    o.rank,
    o.seq,
    o.attempt,
    o.delivery,
    o.lost_count,
    o.total_by,
    coalesce(o.total_by <= coalesce(%(now)s::timestamptz, now()), false) as total_over
from overdue as o
inner join lanes as l on l.lane_id = o.lane_id;

-- name: run_overdue :many RunNamed
-- Finds runs that wait and whose total timeout is over; the caller locks them next. None while
-- timers are held after a restore.
-- Invariants: INV-08, INV-12. Locks: none. Index: ready_tasks_deadline_idx, timers_pkey,
-- lanes_pkey, restores_held_unique.
select o.run_id::text
from (
    (
        select r.run_id
        from ready_tasks as r
        inner join lanes as l on l.lane_id = r.lane_id and l.app_version <> ''
        where r.deadline_at <= coalesce(%(now)s::timestamptz, now())
        order by r.deadline_at
        limit %(run_count_max)s::integer
    )
    union all
    (
        select w.run_id
        from timers as w
        inner join lanes as l on l.lane_id = w.lane_id and l.app_version <> ''
        where
            w.fire_at <= coalesce(%(now)s::timestamptz, now())
            and w.total_by <= coalesce(%(now)s::timestamptz, now())
        order by w.fire_at, w.timer_id
        limit %(run_count_max)s::integer
    )
) as o
where not exists (select 1 from restores as h where h.released_at is null)
order by o.run_id;

-- name: run_take_overdue :many WaitingTaken
-- Takes locked runs whose total timeout is over from where they wait; compared again, since they
-- were found before they were locked.
-- Invariants: INV-07, INV-08, INV-12. Locks: runs held by the caller; the rows. Index:
-- ready_tasks_task_idx, timers_task_idx.
with ready as (
    delete from ready_tasks as r
    where
        r.task_id = any(%(run_ids)s::uuid [])
        and r.total_by <= coalesce(%(now)s::timestamptz, now())
    returning r.run_id, r.task_id, r.attempt, r.delivery
),
timed as (
    delete from timers as w
    where
        w.task_id = any(%(run_ids)s::uuid [])
        and w.total_by <= coalesce(%(now)s::timestamptz, now())
    returning w.run_id, w.task_id, w.attempt, w.delivery
)
select run_id::text, task_id::text, attempt, delivery from ready
union all
select run_id::text, task_id::text, attempt, delivery from timed;

-- name: due :one Due
-- Says, in one cheap statement, what there is to do for all loops of a server: so an idle server
-- asks once a second. `ready_lane_ids` are the lanes, of those the server's workers can serve,
-- that hold a task. While timers are held after a restore, no timer or timeout is due.
-- Invariants: INV-10. Locks: none. Index: timers_pkey,
-- cancel_requests_deadline_idx, leases_deadline_idx, ready_tasks_deadline_idx,
-- lanes_identity_unique, ready_tasks_pkey, restores_held_unique.
with held as materialized (
    select h.checked_at
    from restores as h
    where h.released_at is null
)
select
    (select checked_at from held) as timers_held_at,
    exists (
        select 1 from leases as l where l.expires_at < coalesce(%(now)s::timestamptz, now())
    ) as lease_expired,
    case when not exists (select 1 from held) then (
        select extract(epoch from min(w.fire_at) - coalesce(%(now)s::timestamptz, now())) * 1000
        from timers as w
    )::bigint end as timer_due_ms,
    exists (
        select 1
        from cancel_requests as c
        where c.deadline_at <= coalesce(%(now)s::timestamptz, now())
    ) as cancel_overdue,
    exists (select 1 from cancel_requests as c) as cancel_requested,
    exists (select 1 from run_inbox as b) as run_told,
    not exists (select 1 from held)
    and (
        exists (
            select 1 from leases as l where l.deadline_at <= coalesce(%(now)s::timestamptz, now())
        )
        or exists (
            select 1
            from ready_tasks as r
            where r.deadline_at <= coalesce(%(now)s::timestamptz, now())
        )
    ) as timeout_due,
    array(
        select l.lane_id
        from unnest(
            %(namespace_ids)s::integer [], %(queues)s::text [], %(names)s::text [],
            %(app_versions)s::text []
        ) as i (namespace_id, queue, name, app_version)
        inner join lanes as l
            on l.namespace_id = i.namespace_id and l.queue = i.queue and l.name = i.name
            and l.app_version = i.app_version
        where exists (select 1 from ready_tasks as r where r.lane_id = l.lane_id)
    ) as ready_lane_ids;
