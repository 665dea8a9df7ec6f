-- name: run_lock :many RunLocked
-- Locks runs whose activations end, which are to be cancelled, or which go on. What the next
-- statements see of their places and of requests to cancel them is then final.
-- Invariants: INV-01, INV-04. Locks: runs by id, NO KEY UPDATE, after leases. Index: runs_pkey.
select
    r.run_id::text,
    r.namespace_id,
    r.status::text,
    r.recovery_attempts,
    r.version,
    r.parent_run_id::text
from unnest(%(run_ids)s::uuid []) as i (run_id)
inner join runs as r on r.run_id = i.run_id
order by r.run_id
for no key update of r;

-- name: run_lock_free :many RunLocked
-- Locks those of the runs that nobody is acting on.
-- Invariants: INV-01, INV-04. Locks: runs, NO KEY UPDATE SKIP LOCKED. Index: runs_pkey.
select
    r.run_id::text,
    r.namespace_id,
    r.status::text,
    r.recovery_attempts,
    r.version,
    r.parent_run_id::text
from unnest(%(run_ids)s::uuid []) as i (run_id)
inner join runs as r on r.run_id = i.run_id
order by r.run_id
for no key update of r skip locked;

-- name: run_settle :many RunNamed
-- Writes what the endings of activations make of their runs; one that is over tells the run that
-- started it. Gives those that were told.
-- Invariants: INV-02. Locks: runs held by the caller. Index: runs_pkey.
with settled as (
    update runs as r
    set
        status = i.status,
        blocked = i.blocked,
        failure = i.failure,
        version = coalesce(r.version, i.version),
        ended_at = case when i.ended then coalesce(%(now)s::timestamptz, now()) end
    from unnest(
        %(run_ids)s::uuid [],
        %(statuses)s::run_status [],
        %(ended)s::boolean [],
        %(blocked)s::run_blocked [],
        %(failures)s::jsonb [],
        %(versions)s::text []
    ) as i (run_id, status, ended, blocked, failure, version)
    where r.run_id = i.run_id
    returning r.run_id, r.parent_run_id, i.ended
)
insert into run_inbox (run_id, child_id)
select
    s.parent_run_id,
    s.run_id
from settled as s
where s.ended and s.parent_run_id is not null
order by s.run_id
returning run_id::text;

-- name: inbox_pick :many RunNamed
-- Finds runs with something in their inboxes, after a place: one look at the index for each run,
-- however much stands there for it.
-- Invariants: INV-10. Locks: none. Index: run_inbox_pkey.
with recursive found as (
    (
        select n.run_id
        from run_inbox as n
        where n.run_id > %(after_run_id)s::uuid
        order by n.run_id
        limit 1
    )
    union all
    select (
        select n.run_id
        from run_inbox as n
        where n.run_id > f.run_id
        order by n.run_id
        limit 1
    )
    from found as f
    where f.run_id is not null
)
select f.run_id::text
from found as f
where f.run_id is not null
limit %(run_count_max)s::integer;

-- name: inbox_take :many InboxTaken
-- Takes what stands in the inboxes of locked runs, the oldest first, so many of each at most. Who
-- reads anything of what it speaks of reads it in a later statement.
-- Invariants: INV-01. Locks: runs held by the caller. Index: run_inbox_pkey.
with found as materialized (
    select n.place
    from unnest(%(run_ids)s::uuid []) as i (run_id)
    cross join lateral (
        select b.ctid as place
        from run_inbox as b
        where b.run_id = i.run_id
        order by b.inbox_id
        limit %(row_count_max)s::integer
    ) as n
)
delete from run_inbox as b
where b.ctid = any(array(select place from found))
returning b.run_id::text, b.child_id::text;

-- name: inbox_drop :exec
-- Drops what stands in the inboxes of runs that do not exist any more.
-- Invariants: INV-03. Locks: the rows. Index: run_inbox_pkey, runs_pkey.
delete from run_inbox as n
using unnest(%(run_ids)s::uuid []) as i (run_id)
where
    n.run_id = i.run_id
    and not exists (select 1 from runs as r where r.run_id = i.run_id);

-- name: wait_clear :exec
-- Forgets what runs waited for: they go on, or are over.
-- Invariants: INV-01. Locks: runs held by the caller. Index: run_waits_pkey, run_wait_sets_pkey.
with waits as (
    delete from run_waits as w
    using unnest(%(run_ids)s::uuid []) as i (run_id)
    where w.run_id = i.run_id
)
delete from run_wait_sets as s
using unnest(%(run_ids)s::uuid []) as i (run_id)
where s.run_id = i.run_id;

-- name: wait_set_insert :exec
-- Notes how much of each set runs wait for.
-- Invariants: INV-01. Locks: runs held by the caller. Index: none.
insert into run_wait_sets (run_id, set_number, needed_count)
select
    i.run_id,
    i.set_number,
    i.needed_count
from unnest(
    %(run_ids)s::uuid [], %(set_numbers)s::smallint [], %(needed_counts)s::integer []
) as i (run_id, set_number, needed_count);

-- name: wait_insert :exec
-- Notes for which tasks and runs the sets wait.
-- Invariants: INV-01. Locks: runs held by the caller. Index: none.
insert into run_waits (run_id, child_id, set_number)
select
    i.run_id,
    i.child_id,
    i.set_number
from unnest(%(run_ids)s::uuid [], %(child_ids)s::uuid [], %(set_numbers)s::smallint [])
    as i (run_id, child_id, set_number);

-- name: wait_look :many WaitSetCounted
-- Takes out of the waits of runs what is over already, in a statement after they were inserted and
-- the inbox was taken: what ends later stands in the inbox. What the run did not start is over, as
-- nothing else would ever say so.
-- Invariants: INV-01. Locks: runs held by the caller. Index: run_waits_pkey, tasks_pkey, runs_pkey,
-- deliveries_pkey, dead_letters_pkey, run_wait_sets_pkey.
with over as materialized (
    select w.ctid as place
    from unnest(%(run_ids)s::uuid []) as i (run_id)
    inner join run_waits as w on w.run_id = i.run_id
    left join tasks as t
        on t.run_id = w.run_id and t.task_id = w.child_id and w.child_id <> w.run_id
    left join runs as c on c.run_id = w.child_id and c.parent_run_id = w.run_id
    left join lateral (
        select e.delivery, e.final
        from deliveries as e
        where e.run_id = t.run_id and e.task_id = t.task_id
        order by e.delivery desc
        limit 1
    ) as d on true
    where
        (t.task_id is null and c.run_id is null)
        or c.ended_at is not null
        or d.final
        and not exists (
            select 1
            from dead_letters as g
            where
                g.run_id = t.run_id and g.task_id = t.task_id and g.delivery = d.delivery
                and g.state = 'REPLAYED'
        )
),
met as (
    delete from run_waits as w
    where w.ctid = any(array(select place from over))
    returning w.run_id, w.set_number
),
counted as (
    select
        m.run_id,
        m.set_number,
        count(*) as met_count
    from met as m
    group by m.run_id, m.set_number
)
update run_wait_sets as s
set needed_count = s.needed_count - c.met_count
from counted as c
where s.run_id = c.run_id and s.set_number = c.set_number
returning s.run_id::text, s.needed_count;

-- name: wait_count :many WaitSetCounted
-- Takes out of the waits of locked runs what was taken from their inboxes: each task or run counts
-- once, however often it is told of.
-- Invariants: INV-01, INV-03. Locks: runs held by the caller. Index: run_waits_pkey,
-- run_wait_sets_pkey.
with met as (
    delete from run_waits as w
    using unnest(%(run_ids)s::uuid [], %(child_ids)s::uuid []) as i (run_id, child_id)
    where w.run_id = i.run_id and w.child_id = i.child_id
    returning w.run_id, w.set_number
),
counted as (
    select
        m.run_id,
        m.set_number,
        count(*) as met_count
    from met as m
    group by m.run_id, m.set_number
)
update run_wait_sets as s
set needed_count = s.needed_count - c.met_count
from counted as c
where s.run_id = c.run_id and s.set_number = c.set_number
returning s.run_id::text, s.needed_count;

-- name: run_go_on :many RunReadied
-- Makes locked runs ready that wait for their time or for something to happen, and forgets what
-- they waited for. One whose timer fires meanwhile is ready already, and does not come back.
-- `recovered` counts their lost activations anew.
-- Invariants: INV-07, INV-12. Locks: runs held by the caller; the timers. Index: timers_task_idx,
-- runs_pkey, run_waits_pkey, run_wait_sets_pkey.
with taken as materialized (
    delete from timers as w
    where w.task_id = any(%(run_ids)s::uuid []) and w.task_id = w.run_id
    returning
        w.fire_at, w.timer_id, w.run_id, w.lane_id, w.rank, w.attempt, w.delivery, w.lost_count,
        w.total_by
),
opened as (
    update runs as r
    set status = 'OPEN', blocked = null, failure = null
    from taken as t
    where r.run_id = t.run_id
),
waits as (
    delete from run_waits as w
    using taken as t
    where w.run_id = t.run_id
),
sets as (
    delete from run_wait_sets as s
    using taken as t
    where s.run_id = t.run_id
)
insert into ready_tasks (
    lane_id, rank, run_id, task_id, attempt, delivery, lost_count, total_by, deadline_at
)
select
    lane_id,
    rank,
    run_id,
    run_id,
    attempt,
    delivery,
    case when %(recovered)s::boolean then 0 else lost_count end,
    total_by,
    total_by
from taken
order by fire_at, timer_id
returning run_id::text, lane_id, rank;
