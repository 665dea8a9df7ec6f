-- name: task_read :many TaskRow
-- Reads tasks, each in the one place where it is live, else by its latest delivery, in one
-- snapshot. This statement is the definition of a task's state.
-- Invariants: INV-07. Locks: none. Index: tasks_pkey, deliveries_pkey, dead_letters_pkey,
-- ready_tasks_task_idx, timers_task_idx, leases_task_idx, cancel_requests_pkey.
select
    -- tidy: the whole state comes from one statement, so that it comes from one snapshot
    t.run_id::text,
    t.task_id::text,
    l.lane_id,
    l.name,
    l.queue,
    l.lane_key,
    case
        when d.final and g.state is distinct from 'REPLAYED' then
            case
                when g.task_id is not null then 'DEAD'
                when d.outcome = 'DONE' then 'COMPLETED'
                when d.outcome = 'CANCELLED' then 'CANCELLED'
                when d.outcome = 'TIMED_OUT' then 'TIMED_OUT'
                else 'DEAD'
            end
        when r.task_id is not null then 'READY'
        when w.task_id is not null then case w.kind when 'DELAY' then 'DELAYED' else 'BACKOFF' end
        when h.started then 'RUNNING'
        when h.lease_id is not null then 'LEASED'
        else 'LOST_TRACK'
    end as state,
    t.priority,
    t.policy_id,
    coalesce(h.attempt, d.attempt, 0) as attempt,
    coalesce(h.delivery, d.delivery, 0) as delivery,
    coalesce(
        r.lost_count, w.lost_count, h.lost_count,
        (
            select count(*)
            from deliveries as e
            where e.run_id = t.run_id and e.task_id = t.task_id and e.outcome = 'LOST'
        )
    )::integer as lost_count,
    t.enqueued_at,
    coalesce(w.fire_at, r.ready_at) as ready_at,
    h.started_at,
    case when %(include_details)s::boolean then h.details end as details,
    case when d.final and g.state is distinct from 'REPLAYED' then d.ended_at end as ended_at,
    s.worker,
    t.key,
    t.traceparent,
    c.task_id is not null as cancel_requested,
    c.reason as cancel_reason,
    c.deadline_at as cancel_deadline_at,
    d.failure,
    case when %(include_payloads)s::boolean then t.input end as input,
    t.input_encoding,
    t.input_schema,
    case when %(include_payloads)s::boolean and d.outcome = 'DONE' then d.output end as output,
    d.output_encoding,
    d.output_schema
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) with ordinality
    as i (run_id, task_id, ord)
inner join tasks as t
    on t.run_id = i.run_id and t.task_id = i.task_id
    and t.namespace_id = %(namespace_id)s::integer
-- A run is none, though it is live where tasks are.
inner join lanes as l on l.lane_id = t.lane_id and l.app_version = ''
left join lateral (
    select e.outcome, e.final, e.ended_at, e.delivery, e.attempt, e.failure, e.output,
        e.output_encoding, e.output_schema
    from deliveries as e
    where e.run_id = t.run_id and e.task_id = t.task_id
    order by e.delivery desc
    limit 1
) as d on true
left join dead_letters as g
    on g.run_id = t.run_id and g.task_id = t.task_id
    and g.delivery = d.delivery
left join lateral (
    select y.task_id, y.ready_at, y.lost_count
    from ready_tasks as y
    where y.task_id = t.task_id
    limit 1
) as r on true
left join timers as w on w.task_id = t.task_id
left join lateral (
    select
        x.lease_id,
        x.session_id,
        x.attempts[array_position(x.task_ids, t.task_id)] as attempt,
        x.deliveries[array_position(x.task_ids, t.task_id)] as delivery,
        x.lost_counts[array_position(x.task_ids, t.task_id)] as lost_count,
        t.task_id = any(x.started_task_ids) as started,
        x.started_at[array_position(x.started_task_ids, t.task_id)] as started_at,
        x.details -> t.task_id::text as details
    from leases as x
    where
        x.task_ids @> array[t.task_id]
        and x.deliveries[array_position(x.task_ids, t.task_id)] > coalesce(d.delivery, 0)
    limit 1
) as h on true
left join sessions as s on s.session_id = h.session_id
left join cancel_requests as c on c.run_id = t.run_id and c.task_id = t.task_id
order by i.ord;

-- name: delivery_list :many DeliveryRow
-- Lists the deliveries of one task, oldest first.
-- Invariants: none. Locks: none. Index: deliveries_pkey, sessions_pkey.
select
    d.delivery,
    d.attempt,
    d.outcome::text,
    d.final,
    s.worker,
    d.started_at,
    d.ended_at,
    d.failure
from deliveries as d
left join sessions as s on s.session_id = d.session_id
where d.run_id = %(run_id)s::uuid and d.task_id = %(task_id)s::uuid
order by d.delivery;

-- name: task_result_list :many TaskResultRow
-- Reads how tasks were over; a task that is not over has no `outcome`, one that does not exist no
-- row. A replayed dead letter is not over.
-- Invariants: INV-07. Locks: none. Index: tasks_pkey, lanes_pkey, deliveries_pkey,
-- dead_letters_pkey.
select
    t.run_id::text,
    t.task_id::text,
    case when g.state is distinct from 'REPLAYED' then d.outcome::text end as outcome,
    g.task_id is not null as dead,
    l.app_version <> '' as of_run,
    d.attempt,
    d.output,
    d.output_encoding,
    d.output_schema,
    d.failure
from unnest(%(namespace_ids)s::integer [], %(run_ids)s::uuid [], %(task_ids)s::uuid [])
    as i (namespace_id, run_id, task_id)
inner join tasks as t
    on t.run_id = i.run_id and t.task_id = i.task_id and t.namespace_id = i.namespace_id
inner join lanes as l on l.lane_id = t.lane_id
left join lateral (
    select e.outcome, e.final, e.delivery, e.attempt, e.output, e.output_encoding,
        e.output_schema, e.failure
    from deliveries as e
    where e.run_id = t.run_id and e.task_id = t.task_id
    order by e.delivery desc
    limit 1
) as d on d.final
left join dead_letters as g
    on g.run_id = t.run_id and g.task_id = t.task_id and g.delivery = d.delivery;

-- name: task_over_list :many TaskOver
-- Says which tasks are over, and nothing of how: cheap enough to ask of 10,000 once a second.
-- Invariants: INV-07, INV-10. Locks: none. Index: deliveries_pkey, dead_letters_pkey.
select i.task_id::text
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
inner join lateral (
    select e.final, e.delivery
    from deliveries as e
    where e.run_id = i.run_id and e.task_id = i.task_id
    order by e.delivery desc
    limit 1
) as d on d.final
left join dead_letters as g
    on g.run_id = i.run_id and g.task_id = i.task_id and g.delivery = d.delivery
where g.state is distinct from 'REPLAYED';

-- name: details_list :many DetailsRow
-- Reads the details that the previous delivery of each task left for the next: what a reschedule
-- said, or the last progress of a handler that did not end well.
-- Invariants: none. Locks: none. Index: deliveries_pkey.
select
    d.task_id::text,
    d.output,
    d.output_encoding,
    d.output_schema
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid [], %(deliveries)s::integer [])
    as i (run_id, task_id, delivery)
inner join deliveries as d
    on d.run_id = i.run_id and d.task_id = i.task_id and d.delivery = i.delivery
where d.outcome <> 'DONE' and d.output is not null;

-- name: task_holder :many HolderRow
-- Reads until when a task is leased, and what was last heard of the worker that holds it.
-- Invariants: none. Locks: none. Index: leases_task_idx, sessions_pkey, api_keys_pkey.
select
    l.granted_at,
    l.expires_at,
    s.seen_at,
    s.receiving and s.seen_at > now() - interval '15 seconds' as present,
    k.name as key_name,
    case
        when least(k.revoked_at, k.expires_at) <= now() then least(k.revoked_at, k.expires_at)
    end as key_ended_at
from leases as l
inner join sessions as s on s.session_id = l.session_id
left join api_keys as k on k.api_key_id = s.api_key_id
where l.task_ids @> array[%(task_id)s::uuid]
order by l.granted_at desc
limit 1;

-- name: task_letter :many LetterRow
-- Reads why a task is a dead letter, and whether somebody has dealt with it.
-- Invariants: none. Locks: none. Index: dead_letters_pkey.
select
    g.reason::text,
    g.state::text
from dead_letters as g
where g.run_id = %(run_id)s::uuid and g.task_id = %(task_id)s::uuid;

-- name: task_aside :one AsideRow
-- Tells what keeps workers from a task that they serve: tasks that lost their workers are handed
-- out alone, and a key that has ended shuts its worker out.
-- Invariants: none. Locks: none. Index: lanes_identity_unique, one pass over leases, sessions_pkey,
-- ready_tasks_pkey, sessions_open_idx, api_keys_pkey.
select
    (
        select s.worker
        from leases as l
        inner join lanes as a on a.lane_id = l.lane_id and a.suspect
        inner join sessions as s on s.session_id = l.session_id
        where
            l.namespace_id = %(namespace_id)s::integer
            and s.handlers @> jsonb_build_array(
                jsonb_build_object('name', %(name)s::text, 'queue', %(queue)s::text)
            )
        limit 1
    ) as alone_worker,
    exists (
        select 1
        from lanes as a
        where
            a.namespace_id = %(namespace_id)s::integer
            and a.suspect
            and exists (select 1 from ready_tasks as r where r.lane_id = a.lane_id)
    ) as suspect_waits,
    (
        select jsonb_build_object(
            'worker', s.worker, 'key', k.name, 'ended_at', least(k.revoked_at, k.expires_at)
        )
        from sessions as s
        inner join api_keys as k on k.api_key_id = s.api_key_id
        where
            s.namespace_id = %(namespace_id)s::integer
            and s.closed_at is null
            and least(k.revoked_at, k.expires_at) <= now()
            and s.handlers @> jsonb_build_array(
                jsonb_build_object('name', %(name)s::text, 'queue', %(queue)s::text)
            )
        order by s.seen_at desc
        limit 1
    ) as shut_out;

-- name: task_explain :one ExplainRow
-- Counts what stands around a task: workers that serve its name on its queue, and how many of them
-- are full; those that serve it on other queues; whether any ever did, how many tasks wait before
-- it, and since when timers are held.
-- Invariants: none. Locks: none. Index: sessions_open_idx, leases_session_idx, task_defs_pkey,
-- queues_pkey, ready_tasks_task_idx, ready_tasks_pkey, restores_held_unique.
with live as materialized (
    -- tidy: all that a task is explained by comes from one statement, and so from one snapshot
    select s.session_id, s.worker, s.slots, o.queue
    from sessions as s
    cross join lateral (
        select distinct e.queue
        from jsonb_to_recordset(s.handlers) as e (name text, queue text, kind text)
        where e.name = %(name)s::text and e.kind is null
    ) as o
    where
        s.namespace_id = %(namespace_id)s::integer
        and s.closed_at is null
        and s.receiving
        and s.seen_at > now() - interval '15 seconds'
        and s.handlers @> jsonb_build_array(jsonb_build_object('name', %(name)s::text))
),

serving as materialized (
    select
        h.held_count >= (v.slots ->> 'total')::integer
        or coalesce(
            h.held_here_count >= (v.slots #>> array['by_queue', v.queue])::integer, false
        ) as is_full
    from live as v
    cross join lateral (
        select
            coalesce(sum(l.remaining), 0) as held_count,
            coalesce(sum(l.remaining) filter (where a.queue = v.queue), 0) as held_here_count
        from leases as l
        inner join lanes as a on a.lane_id = l.lane_id
        -- Activations of runs have slots of their own.
        where l.session_id = v.session_id and a.app_version = ''
    ) as h
    where v.queue = %(queue)s::text
)

select
    (select h.checked_at from restores as h where h.released_at is null) as timers_held_at,
    (select count(*) from serving)::integer as worker_count,
    (select count(*) from serving as v where v.is_full)::integer as full_count,
    coalesce(
        (
            select jsonb_object_agg(v.queue, v.worker)
            from live as v
            where v.queue <> %(queue)s::text
        ), '{}'
    ) as elsewhere,
    exists (
        select 1
        from task_defs as f
        where
            f.namespace_id = %(namespace_id)s::integer and f.name = %(name)s::text
            -- An operator may have set something for a name that no code has.
            and f.declared is not null
    ) as registered,
    (
        select q.paused_at
        from queues as q
        where q.namespace_id = %(namespace_id)s::integer and q.name = %(queue)s::text
    ) as paused_at,
    (
        select count(*)
        from (
            select 1
            from ready_tasks as r
            inner join ready_tasks as a
                on a.lane_id = r.lane_id and (a.rank, a.seq) < (r.rank, r.seq)
            where r.task_id = %(task_id)s::uuid
            limit 10000
        ) as n
    )::integer as ahead_count,
    coalesce(
        (
            select l.suspect
            from ready_tasks as r
            inner join lanes as l on l.lane_id = r.lane_id
            where r.task_id = %(task_id)s::uuid
            limit 1
        ), false
    ) as suspect;
