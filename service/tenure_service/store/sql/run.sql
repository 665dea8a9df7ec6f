-- name: run_insert :exec
-- Stores runs beside their rows in tasks. The tree of one with a parent is its parent's.
-- Invariants: INV-06. Locks: none. Index: runs_pkey.
insert into runs (
    run_id, created_at, namespace_id, recovery_attempts, name, parent_run_id, root_run_id,
    attributes
)
select
    i.run_id,
    coalesce(%(now)s::timestamptz, now()),
    i.namespace_id,
    i.recovery_attempts,
    i.name,
    i.parent_run_id,
    coalesce(p.root_run_id, i.run_id),
    i.attributes
from unnest(
    %(run_ids)s::uuid [],
    %(namespace_ids)s::integer [],
    %(names)s::text [],
    %(recovery_attempts)s::smallint [],
    %(parent_run_ids)s::uuid [],
    %(attributes)s::jsonb []
) as i (run_id, namespace_id, name, recovery_attempts, parent_run_id, attributes)
left join runs as p on p.run_id = i.parent_run_id;

-- name: run_read :many RunRow
-- Reads runs, each where it is live, else by its end, in one snapshot. This statement is the
-- definition of a run's state.
-- Invariants: INV-07. Locks: none. Index: runs_pkey, tasks_pkey, deliveries_pkey,
-- ready_tasks_task_idx, timers_task_idx, leases_task_idx, cancel_requests_pkey, steps_pkey.
select
    -- tidy: the whole state comes from one statement, so that it comes from one snapshot
    u.run_id::text,
    u.name,
    l.queue,
    l.lane_key,
    case
        when u.status not in ('OPEN', 'WAITING') then u.status::text
        when r.task_id is not null then 'QUEUED'
        when w.kind = 'DELAY' then 'DELAYED'
        when w.kind = 'WAIT' then 'WAITING'
        when w.task_id is not null then 'QUEUED'
        else 'RUNNING'
    end as state,
    u.blocked::text,
    t.priority,
    u.version,
    coalesce(h.delivery, d.delivery, 0) as activation_count,
    coalesce(r.lost_count, w.lost_count, h.lost_count, 0)::integer as recovery_count,
    t.key,
    u.attributes,
    u.parent_run_id::text,
    u.root_run_id::text,
    coalesce(u.failure, case when d.final then d.failure end) as failure,
    u.created_at,
    u.ended_at,
    case when w.fire_at < '9999-01-01 00:00:00+00' then w.fire_at end as wakes_at,
    s.worker,
    c.task_id is not null as cancel_requested,
    (select count(*) from steps as e where e.run_id = u.run_id)::integer as step_count,
    case when %(include_payloads)s::boolean then t.input end as input,
    t.input_encoding,
    t.input_schema,
    case when %(include_payloads)s::boolean and d.outcome = 'DONE' then d.output end as output,
    d.output_encoding,
    d.output_schema
from unnest(%(run_ids)s::uuid []) with ordinality as i (run_id, ord)
inner join runs as u
    on u.run_id = i.run_id and u.namespace_id = %(namespace_id)s::integer
inner join tasks as t on t.run_id = u.run_id and t.task_id = u.run_id
inner join lanes as l on l.lane_id = t.lane_id
left join lateral (
    select e.outcome, e.final, e.delivery, e.failure, e.output, e.output_encoding, e.output_schema
    from deliveries as e
    where e.run_id = u.run_id and e.task_id = u.run_id
    order by e.delivery desc
    limit 1
) as d on true
left join lateral (
    select y.task_id, y.lost_count
    from ready_tasks as y
    where y.task_id = u.run_id
    limit 1
) as r on true
left join timers as w on w.task_id = u.run_id
left join lateral (
    select
        x.session_id,
        x.deliveries[array_position(x.task_ids, u.run_id)] as delivery,
        x.lost_counts[array_position(x.task_ids, u.run_id)] as lost_count
    from leases as x
    where
        x.task_ids @> array[u.run_id]
        and x.deliveries[array_position(x.task_ids, u.run_id)] > coalesce(d.delivery, 0)
    limit 1
) as h on true
left join sessions as s on s.session_id = h.session_id
left join cancel_requests as c on c.run_id = u.run_id and c.task_id = u.run_id
order by i.ord;

-- name: run_by_key :many RunNamed
-- Finds the run that a key stands for, while it is in force.
-- Invariants: none. Locks: none. Index: idempotency_keys_pkey.
select k.run_id::text
from idempotency_keys as k
where
    k.namespace_id = %(namespace_id)s::integer
    and k.kind = 'RUN'
    and k.key = %(key)s::text
    and k.expires_at > now();

-- name: run_list :many RunNamed
-- Lists runs of these statuses, newest first, from before an id: the newest of each status. The
-- status is bounded, not compared, and leads the order: else the plan may walk the primary key past
-- all runs of other statuses.
-- Invariants: none. Locks: none. Index: runs_status_idx, backwards.
select n.run_id::text
from unnest(%(statuses)s::run_status []) as i (status)
cross join lateral (
    select u.run_id
    from runs as u
    where
        u.namespace_id = %(namespace_id)s::integer
        and u.status between i.status and i.status
        and u.run_id < %(before)s::uuid
    order by u.status desc, u.run_id desc
    limit %(row_count_max)s::integer
) as n
order by n.run_id desc
limit %(row_count_max)s::integer;

-- name: run_list_named :many RunNamed
-- Lists runs of a name and these statuses, newest first, from before an id.
-- Invariants: none. Locks: none. Index: runs_name_idx, backwards.
select u.run_id::text
from runs as u
where
    u.namespace_id = %(namespace_id)s::integer
    and u.name = %(name)s::text
    and u.status = any(%(statuses)s::run_status [])
    and u.run_id < %(before)s::uuid
order by u.run_id desc
limit %(row_count_max)s::integer;

-- name: run_list_of_parent :many RunNamed
-- Lists runs that a run has started, newest first, from before an id.
-- Invariants: none. Locks: none. Index: runs_parent_idx, backwards.
select u.run_id::text
from runs as u
where
    u.parent_run_id = %(parent_run_id)s::uuid
    and u.namespace_id = %(namespace_id)s::integer
    and u.status = any(%(statuses)s::run_status [])
    and (%(name)s::text is null or u.name = %(name)s::text)
    and (%(attributes)s::jsonb is null or u.attributes @> %(attributes)s::jsonb)
    and u.run_id < %(before)s::uuid
order by u.run_id desc
limit %(row_count_max)s::integer;

-- name: run_list_with :many RunNamed
-- Lists runs with attributes, newest first, from before an id. All of them are found before they
-- are sorted: people search for what few runs have.
-- Invariants: none. Locks: none. Index: runs_attributes_idx.
with found as materialized (
    select u.run_id
    from runs as u
    where
        u.attributes @> %(attributes)s::jsonb
        and u.namespace_id = %(namespace_id)s::integer
        and u.status = any(%(statuses)s::run_status [])
        and (%(name)s::text is null or u.name = %(name)s::text)
        and u.run_id < %(before)s::uuid
)
select f.run_id::text
from found as f
order by f.run_id desc
limit %(row_count_max)s::integer;

-- name: step_place :many StepPlace
-- Gives the place of a step among those of its run.
-- Invariants: none. Locks: none. Index: steps_pkey.
select e.seq
from steps as e
where e.run_id = %(run_id)s::uuid and e.step_id = %(step_id)s::text;

-- name: run_fork :exec
-- Stores a run with the input of another one, ready for a worker. Its tree is its own, and so is
-- the time until it is over.
-- Invariants: INV-07. Locks: none. Index: runs_pkey, tasks_pkey, task_policies_pkey.
with source as materialized (
    select
        t.namespace_id, t.policy_id, t.priority, t.input, t.input_encoding, t.input_schema,
        t.traceparent, u.recovery_attempts, u.name, u.attributes,
        now() + (p.body #>> '{total,after_ms}')::bigint * interval '1 millisecond' as total_by
    from runs as u
    inner join tasks as t on t.run_id = u.run_id and t.task_id = u.run_id
    inner join task_policies as p on p.policy_id = t.policy_id
    where u.run_id = %(run_id)s::uuid
),
root as (
    insert into tasks (
        run_id, task_id, namespace_id, lane_id, policy_id, priority, input, input_encoding,
        input_schema, traceparent
    )
    select
        %(new_run_id)s::uuid, %(new_run_id)s::uuid, namespace_id, %(lane_id)s::integer,
        policy_id, priority, input, input_encoding, input_schema, traceparent
    from source
),
stored as (
    insert into runs (
        run_id, namespace_id, recovery_attempts, name, root_run_id, forked_from, attributes
    )
    select
        %(new_run_id)s::uuid, namespace_id, recovery_attempts, name, %(new_run_id)s::uuid,
        %(run_id)s::uuid, attributes
    from source
)
insert into ready_tasks (lane_id, rank, run_id, task_id, total_by, deadline_at)
select
    %(lane_id)s::integer, -priority, %(new_run_id)s::uuid, %(new_run_id)s::uuid, total_by, total_by
from source;

-- name: run_fork_steps :exec
-- Copies the steps of a run before a place to another one. Tasks and runs stay with the run that
-- started them: what they came to is recorded with the copy, and one that is not over is left out.
-- Invariants: INV-06. Locks: none. Index: steps_pkey, deliveries_pkey, dead_letters_pkey.
insert into steps (
    run_id, step_id, recorded_at, kind, name, wake_at, output, output_encoding, output_schema,
    failure
)
select
    %(new_run_id)s::uuid,
    e.step_id,
    e.recorded_at,
    e.kind,
    e.name,
    e.wake_at,
    case when d.outcome = 'DONE' then coalesce(d.output, '') else e.output end,
    coalesce(e.output_encoding, case when d.outcome = 'DONE' then d.output_encoding end),
    coalesce(e.output_schema, case when d.outcome = 'DONE' then d.output_schema end),
    case
        when d.outcome is null then e.failure
        when d.outcome = 'DONE' then null
        -- As `dispatch.history` tells of one that was ended from outside.
        when d.type is null then coalesce(d.failure, '{"type": "Failed", "message": ""}')
        when d.failure ->> 'type' = d.type then d.failure
        else jsonb_strip_nulls(
            jsonb_build_object(
                'type', d.type, 'message', coalesce(d.failure ->> 'message', ''),
                'cause', d.failure
            )
        )
    end
from steps as e
left join lateral (
    select
        f.final, f.outcome, f.output, f.output_encoding, f.output_schema, f.failure,
        case
            when g.task_id is not null then null
            when f.outcome = 'CANCELLED' then 'Cancelled'
            when f.outcome = 'TIMED_OUT' then 'TimedOut'
        end as type,
        g.state is distinct from 'REPLAYED' as stands
    from deliveries as f
    left join dead_letters as g
        on g.run_id = f.run_id and g.task_id = f.task_id and g.delivery = f.delivery
    where
        f.run_id = case e.kind when 'TASK' then e.run_id else e.child_id end
        and f.task_id = e.child_id
    order by f.delivery desc
    limit 1
) as d on d.final and d.stands
where
    e.run_id = %(run_id)s::uuid
    and e.seq < %(before_seq)s::bigint
    and (e.child_id is null or d.outcome is not null)
order by e.seq;
