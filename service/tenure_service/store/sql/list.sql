-- name: ready_list :many TaskKey
-- Lists waiting tasks, newest first, from before a task.
-- Invariants: none. Locks: none. Index: ready_tasks_pkey, tasks_pkey.
select
    t.run_id::text,
    t.task_id::text
from ready_tasks as r
inner join lanes as l
    on l.lane_id = r.lane_id
    and l.namespace_id = %(namespace_id)s::integer
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
inner join tasks as t on t.run_id = r.run_id and t.task_id = r.task_id
where r.task_id < %(before)s::uuid
order by r.task_id desc
limit %(row_count_max)s::integer;

-- name: timer_list :many TaskKey
-- Lists tasks that wait for their time, newest first, from before a task.
-- Invariants: none. Locks: none. Index: timers_task_idx.
select
    w.run_id::text,
    w.task_id::text
from timers as w
inner join lanes as l
    on l.lane_id = w.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
where
    w.namespace_id = %(namespace_id)s::integer
    and (w.kind = 'DELAY') = %(delayed)s::boolean
    and w.task_id < %(before)s::uuid
order by w.task_id desc
limit %(row_count_max)s::integer;

-- name: leased_list :many TaskKey
-- Lists tasks that workers hold, newest first, from before a task.
-- Invariants: none. Locks: none. Index: none; leases are few.
select
    m.run_id::text,
    m.task_id::text
from leases as h
inner join lanes as l
    on l.lane_id = h.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
cross join lateral unnest(h.run_ids, h.task_ids, h.deliveries) as m (run_id, task_id, delivery)
where
    h.namespace_id = %(namespace_id)s::integer
    and coalesce(m.task_id = any(h.started_task_ids), false) = %(started)s::boolean
    and m.task_id < %(before)s::uuid
    and not exists (
        select 1
        from deliveries as d
        where d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
    )
order by m.task_id desc
limit %(row_count_max)s::integer;

-- name: done_list :many TaskKey
-- Lists completed tasks, newest first, from before a task.
-- Invariants: none. Locks: none. Index: deliveries_pkey, backwards.
select
    d.run_id::text,
    d.task_id::text
from deliveries as d
inner join tasks as t
    on t.run_id = d.run_id and t.task_id = d.task_id
    and t.namespace_id = %(namespace_id)s::integer
inner join lanes as l
    on l.lane_id = t.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
where d.outcome = 'DONE' and d.run_id <= %(before)s::uuid and d.task_id < %(before)s::uuid
order by d.run_id desc, d.task_id desc
limit %(row_count_max)s::integer;

-- name: ended_otherwise_list :many TaskKey
-- Lists cancelled or timed out tasks, newest first, from before a task.
-- Invariants: none. Locks: none. Index: deliveries_ended_otherwise_idx, backwards.
select
    d.run_id::text,
    d.task_id::text
from deliveries as d
inner join tasks as t
    on t.run_id = d.run_id and t.task_id = d.task_id
    and t.namespace_id = %(namespace_id)s::integer
inner join lanes as l
    on l.lane_id = t.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
where
    d.final
    and d.outcome in ('CANCELLED', 'TIMED_OUT')
    and d.outcome = %(outcome)s::delivery_outcome
    and d.run_id <= %(before)s::uuid
    and d.task_id < %(before)s::uuid
order by d.run_id desc, d.task_id desc
limit %(row_count_max)s::integer;

-- name: dead_list :many TaskKey
-- Lists dead tasks, newest first, from before a task. Discarded ones are dead too.
-- Invariants: INV-13. Locks: none. Index: dead_letters_pkey.
select
    g.run_id::text,
    g.task_id::text
from dead_letters as g
inner join lanes as l
    on l.lane_id = g.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
    and l.app_version = ''
where
    g.namespace_id = %(namespace_id)s::integer
    and g.state <> 'REPLAYED'
    and g.run_id <= %(before)s::uuid
    and g.task_id < %(before)s::uuid
order by g.run_id desc, g.task_id desc
limit %(row_count_max)s::integer;
