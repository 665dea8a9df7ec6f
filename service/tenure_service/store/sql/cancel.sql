-- name: cancel_request_insert :exec
-- Asks for the end of tasks. A request that stands stays as it is.
-- Invariants: INV-02. Locks: the unique keys, in order. Index: cancel_requests_pkey.
insert into cancel_requests (run_id, task_id, namespace_id, reason, deadline_at)
select
    i.run_id,
    i.task_id,
    %(namespace_id)s::integer,
    %(reason)s::text,
    coalesce(%(now)s::timestamptz, now()) + %(grace_ms)s::bigint * interval '1 millisecond'
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
order by i.run_id, i.task_id
on conflict do nothing;

-- name: cancel_request_shorten :exec
-- Brings the end of the grace of standing requests forward; none is put off. The caller holds the
-- leases of the tasks, as whoever deletes a request of a task that runs does: the other way round,
-- the two would wait for each other.
-- Invariants: INV-02, INV-12. Locks: leases held by the caller; the rows, in order. Index:
-- cancel_requests_pkey.
with later as materialized (
    select
        c.run_id,
        c.task_id
    from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
    inner join cancel_requests as c on c.run_id = i.run_id and c.task_id = i.task_id
    where
        c.deadline_at
        > coalesce(%(now)s::timestamptz, now()) + %(grace_ms)s::bigint * interval '1 millisecond'
    order by c.run_id, c.task_id
    for no key update of c
)
update cancel_requests as c
set
    deadline_at
    = coalesce(%(now)s::timestamptz, now()) + %(grace_ms)s::bigint * interval '1 millisecond'
from later as l
where c.run_id = l.run_id and c.task_id = l.task_id;

-- name: cancel_request_list :many CancelRequested
-- Says which of the tasks are to be cancelled, and why.
-- Invariants: INV-02. Locks: none. Index: cancel_requests_pkey.
select
    c.task_id::text,
    c.reason
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
inner join cancel_requests as c on c.run_id = i.run_id and c.task_id = i.task_id;

-- name: cancel_request_delete :exec
-- Drops the requests of tasks that are over.
-- Invariants: INV-02. Locks: the rows. Index: cancel_requests_pkey.
delete from cancel_requests as c
using unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
where c.run_id = i.run_id and c.task_id = i.task_id;

-- name: cancel_request_any :one CancelStanding
-- Says whether any request stands at all, which spares a report of outputs to look for each task:
-- 0.15 against 1.4 ms for 200 of them, beside 5 ms for the report.
-- Invariants: INV-02. Locks: none. Index: none.
select exists (select 1 from cancel_requests) as standing;

-- name: cancel_request_recent :many CancelNotice
-- Lists the requests that workers are to be told of; few stand at a time.
-- Invariants: INV-10. Locks: none. Index: none; the table is small.
select
    c.run_id::text,
    c.task_id::text,
    c.reason,
    greatest(
        0, extract(epoch from c.deadline_at - coalesce(%(now)s::timestamptz, now())) * 1000
    )::bigint as grace_ms
from cancel_requests as c
order by c.requested_at desc
limit 10000;

-- name: cancel_request_overdue :many CancelOverdue
-- Finds tasks whose grace is over and that are not.
-- Invariants: INV-12. Locks: none. Index: cancel_requests_deadline_idx.
select
    c.namespace_id,
    c.run_id::text,
    c.task_id::text,
    c.task_id = c.run_id and exists (
        select 1 from runs as u
        where u.run_id = c.run_id
    ) as of_run
from cancel_requests as c
where c.deadline_at <= coalesce(%(now)s::timestamptz, now())
order by c.deadline_at
limit 500;

-- name: lease_of_task :many LeaseOfTask
-- Finds the leases that name the tasks; the caller locks them next. A lease may name a task whose
-- hand-out under it has ended.
-- Invariants: INV-07. Locks: none. Index: leases_task_idx.
select
    l.lease_id::text,
    i.task_id::text
from unnest(%(task_ids)s::uuid []) as i (task_id)
inner join leases as l on l.task_ids @> array[i.task_id];

-- name: ready_delete :many WaitingTaken
-- Takes tasks that wait for a worker out of their lanes.
-- Invariants: INV-07. Locks: the rows. Index: ready_tasks_task_idx.
delete from ready_tasks as r
where r.task_id = any(%(task_ids)s::uuid [])
returning r.run_id::text, r.task_id::text, r.attempt, r.delivery;

-- name: timer_delete :many WaitingTaken
-- Takes tasks that wait for their time off the clock.
-- Invariants: INV-07, INV-12. Locks: the rows. Index: timers_task_idx.
delete from timers as w
where w.task_id = any(%(task_ids)s::uuid [])
returning w.run_id::text, w.task_id::text, w.attempt, w.delivery;

-- name: cancel_request_of_lease :many CancelNotice
-- Lists the requests to cancel tasks of some leases.
-- Invariants: INV-10. Locks: none. Index: leases_pkey; the table of requests is small.
select
    c.run_id::text,
    c.task_id::text,
    c.reason,
    greatest(0, extract(epoch from c.deadline_at - now()) * 1000)::bigint as grace_ms
from leases as l
inner join cancel_requests as c on c.task_id = any(l.task_ids)
where l.lease_id = any(%(lease_ids)s::uuid []);

-- name: cancel_request_spread :exec
-- Asks for the end of what runs have started that are over: of their tasks and runs that are not.
-- One that ends meanwhile keeps its request until somebody looks at those that stand.
-- Invariants: INV-02. Locks: the unique keys, in order; the caller holds the runs. Index:
-- tasks_pkey, deliveries_pkey, dead_letters_pkey, runs_parent_idx, cancel_requests_pkey.
insert into cancel_requests (run_id, task_id, namespace_id, reason, deadline_at)
select
    o.run_id,
    o.task_id,
    o.namespace_id,
    %(reason)s::text,
    coalesce(%(now)s::timestamptz, now()) + %(grace_ms)s::bigint * interval '1 millisecond'
from (
    select t.run_id, t.task_id, t.namespace_id
    from unnest(%(run_ids)s::uuid []) as i (run_id)
    inner join tasks as t on t.run_id = i.run_id and t.task_id <> t.run_id
    left join lateral (
        select e.delivery, e.final
        from deliveries as e
        where e.run_id = t.run_id and e.task_id = t.task_id
        order by e.delivery desc
        limit 1
    ) as d on d.final
    left join dead_letters as g
        on g.run_id = t.run_id and g.task_id = t.task_id and g.delivery = d.delivery
        and g.state = 'REPLAYED'
    where d.delivery is null or g.task_id is not null
    union all
    select c.run_id, c.run_id, c.namespace_id
    from unnest(%(run_ids)s::uuid []) as i (run_id)
    inner join runs as c on c.parent_run_id = i.run_id
    where c.ended_at is null
) as o
order by o.run_id, o.task_id
on conflict do nothing;

-- name: cancel_request_idle :many CancelOverdue
-- Finds requests that nobody is told of: of tasks that wait, of runs that wait for something or
-- that no worker has had, and of what was over before its request stood. They come from the ends
-- of runs (cancel_request_spread); whoever cancels directly sees to them itself.
-- Invariants: INV-02, INV-10. Locks: none. Index: ready_tasks_task_idx, timers_task_idx, runs_pkey,
-- deliveries_pkey; requests are few.
select
    c.namespace_id,
    c.run_id::text,
    c.task_id::text,
    u.run_id is not null as of_run
from cancel_requests as c
left join runs as u on u.run_id = c.run_id and c.task_id = c.run_id
where
    u.ended_at is not null
    or exists (select 1 from timers as w where w.task_id = c.task_id)
    or exists (
        select 1 from ready_tasks as r
        where r.task_id = c.task_id and (u.run_id is null or r.delivery = 1)
    )
    or u.run_id is null
    and not exists (select 1 from leases as l where l.task_ids @> array[c.task_id])
limit 500;

-- name: run_ready_take :many WaitingTaken
-- Takes locked runs out of their lanes, up to a number of their next hand-out.
-- Invariants: INV-07. Locks: runs held by the caller; the rows. Index: ready_tasks_task_idx.
delete from ready_tasks as r
where
    r.task_id = any(%(run_ids)s::uuid [])
    and r.delivery <= %(delivery_max)s::integer
    and r.run_id = r.task_id
returning r.run_id::text, r.task_id::text, r.attempt, r.delivery;

-- name: run_timer_take :many WaitingTaken
-- Takes locked runs off the clock, up to a number of their next hand-out.
-- Invariants: INV-07, INV-12. Locks: runs held by the caller; the rows. Index: timers_task_idx.
delete from timers as w
where
    w.task_id = any(%(run_ids)s::uuid [])
    and w.delivery <= %(delivery_max)s::integer
    and w.run_id = w.task_id
returning w.run_id::text, w.task_id::text, w.attempt, w.delivery;
