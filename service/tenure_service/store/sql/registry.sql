-- name: namespace_list :many NamespaceRow
-- Lists namespaces, in order of name.
-- Invariants: none. Locks: none. Index: namespaces_name_unique.
select
    n.namespace_id,
    n.name,
    n.created_at
from namespaces as n
order by n.name;

-- name: namespace_insert :exec
-- Creates a namespace, unless it stands.
-- Invariants: none. Locks: the unique key. Index: namespaces_name_unique.
insert into namespaces (name) values (%(name)s::text)
on conflict do nothing;

-- name: lane_insert :exec
-- Creates lanes that do not stand yet. It runs in a transaction of its own, so that a lane which
-- a server remembers is a lane that exists.
-- Invariants: none. Locks: the unique keys, in order. Index: lanes_identity_unique.
insert into lanes (namespace_id, queue, name, app_version, lane_key, suspect)
select
    i.namespace_id,
    i.queue,
    i.name,
    i.app_version,
    i.lane_key,
    i.suspect
from unnest(
    %(namespace_ids)s::integer [],
    %(queues)s::text [],
    %(names)s::text [],
    %(lane_keys)s::text [],
    %(suspects)s::boolean [],
    %(app_versions)s::text []
) as i (namespace_id, queue, name, lane_key, suspect, app_version)
order by i.namespace_id, i.queue, i.name, i.app_version, i.lane_key, i.suspect
on conflict do nothing;

-- name: lane_find :many LaneRow
-- Finds lanes by what they are.
-- Invariants: none. Locks: none. Index: lanes_identity_unique.
select
    l.lane_id,
    l.namespace_id,
    l.queue,
    l.name,
    l.lane_key,
    l.suspect,
    l.app_version
from unnest(
    %(namespace_ids)s::integer [],
    %(queues)s::text [],
    %(names)s::text [],
    %(lane_keys)s::text [],
    %(suspects)s::boolean [],
    %(app_versions)s::text []
) as i (namespace_id, queue, name, lane_key, suspect, app_version)
inner join lanes as l
    on l.namespace_id = i.namespace_id and l.queue = i.queue and l.name = i.name
    and l.app_version = i.app_version and l.lane_key = i.lane_key and l.suspect = i.suspect;

-- name: lane_get :many LaneRow
-- Reads lanes by id.
-- Invariants: none. Locks: none. Index: lanes_pkey.
select
    l.lane_id,
    l.namespace_id,
    l.queue,
    l.name,
    l.lane_key,
    l.suspect,
    l.app_version
from lanes as l
where l.lane_id = any(%(lane_ids)s::integer []);

-- name: policy_insert :exec
-- Stores policies that do not stand yet, in a transaction of its own.
-- Invariants: none. Locks: the unique keys, in order. Index: task_policies_digest_unique.
insert into task_policies (body, digest)
select
    i.body,
    i.digest
from unnest(%(bodies)s::jsonb [], %(digests)s::bytea []) as i (body, digest)
order by i.digest
on conflict do nothing;

-- name: policy_find :many PolicyRow
-- Finds policies by what they say.
-- Invariants: none. Locks: none. Index: task_policies_digest_unique.
select
    p.policy_id,
    p.digest,
    p.body
from task_policies as p
where p.digest = any(%(digests)s::bytea []);

-- name: policy_get :many PolicyRow
-- Reads policies by id.
-- Invariants: none. Locks: none. Index: task_policies_pkey.
select
    p.policy_id,
    p.digest,
    p.body
from task_policies as p
where p.policy_id = any(%(policy_ids)s::integer []);

-- name: task_def_declare :exec
-- Notes what a worker's code declares of its tasks, where it differs from what stands. A conflict
-- locks its row even if nothing is to change: a thousand equal workers would stand in line.
-- Invariants: none. Locks: the rows that differ, in order. Index: task_defs_pkey.
insert into task_defs as f (namespace_id, name, declared, app_version)
select
    %(namespace_id)s::integer,
    i.name,
    i.declared,
    %(app_version)s::text
from unnest(%(names)s::text [], %(declareds)s::jsonb []) as i (name, declared)
left join task_defs as t on t.namespace_id = %(namespace_id)s::integer and t.name = i.name
where
    t.declared is distinct from i.declared
    or t.app_version is distinct from %(app_version)s::text
order by i.name
on conflict (namespace_id, name) do update
    set
        declared = excluded.declared,
        app_version = excluded.app_version,
        updated_at = now();

-- name: task_def_override :exec
-- Stores or clears an operator's override.
-- Invariants: none. Locks: the row. Index: task_defs_pkey.
insert into task_defs (namespace_id, name, override)
values (%(namespace_id)s::integer, %(name)s::text, %(override)s::jsonb)
on conflict (namespace_id, name) do update
    set
        override = excluded.override,
        updated_at = now();

-- name: task_def_list :many TaskDefRow
-- Lists task definitions of a namespace after a name, in order of name.
-- Invariants: none. Locks: none. Index: task_defs_pkey.
select
    f.name,
    f.declared,
    f.override,
    f.app_version,
    f.updated_at
from task_defs as f
where f.namespace_id = %(namespace_id)s::integer and f.name > %(after)s::text
order by f.name
limit %(row_count_max)s::integer;

-- name: task_def_get :one TaskDefRow
-- Reads one task definition.
-- Invariants: none. Locks: none. Index: task_defs_pkey.
select
    f.name,
    f.declared,
    f.override,
    f.app_version,
    f.updated_at
from task_defs as f
where f.namespace_id = %(namespace_id)s::integer and f.name = %(name)s::text;

-- name: task_def_policies :many TaskDefPolicies
-- Lists what code declares and operators override; a server keeps it in memory, and reads it again
-- every few seconds.
-- Invariants: none. Locks: none. Index: none; task names are few.
select
    f.namespace_id,
    f.name,
    f.declared,
    f.override
from task_defs as f;

-- name: queue_set :one QueueRow
-- Pauses a queue, or opens it; a pause that stands keeps its time.
-- Invariants: none. Locks: the row. Index: queues_pkey.
insert into queues as q (namespace_id, name, paused_at)
values (
    %(namespace_id)s::integer, %(name)s::text, case when %(paused)s::boolean then now() end
)
on conflict (namespace_id, name) do update
    set paused_at = case when %(paused)s::boolean then coalesce(q.paused_at, now()) end
returning q.name, q.paused_at;

-- name: queue_list :many QueueRow
-- Lists queues of a namespace after a name: those that were set, and those that lanes speak of.
-- Invariants: none. Locks: none. Index: queues_pkey, lanes_identity_unique.
select
    n.name,
    q.paused_at
from (
    select l.queue as name
    from lanes as l
    where l.namespace_id = %(namespace_id)s::integer
    union
    select s.name
    from queues as s
    where s.namespace_id = %(namespace_id)s::integer
) as n
left join queues as q
    on q.namespace_id = %(namespace_id)s::integer and q.name = n.name
where n.name > %(after)s::text
order by n.name
limit %(row_count_max)s::integer;

-- name: queue_statistics :many QueueStatisticsRow
-- Counts, by queue and task name, what waits, what is timed, what is leased, and what is dead.
-- Invariants: none. Locks: none. Index: ready_tasks_pkey, timers, leases: one pass each.
with counted as (
    select r.lane_id, count(*) as ready_count, min(r.ready_at) as oldest_ready_at,
        0::bigint as delayed_count, 0::bigint as leased_count, 0::bigint as dead_count
    from ready_tasks as r
    group by r.lane_id
    union all
    select w.lane_id, 0, null, count(*), 0, 0
    from timers as w
    group by w.lane_id
    union all
    select h.lane_id, 0, null, 0, sum(h.remaining), 0
    from leases as h
    group by h.lane_id
    union all
    select g.lane_id, 0, null, 0, 0, count(*)
    from dead_letters as g
    where g.namespace_id = %(namespace_id)s::integer and g.state = 'OPEN'
    group by g.lane_id
)
select
    l.queue,
    l.name,
    sum(c.ready_count)::bigint as ready_count,
    sum(c.delayed_count)::bigint as delayed_count,
    sum(c.leased_count)::bigint as leased_count,
    sum(c.dead_count)::bigint as dead_count,
    min(c.oldest_ready_at) as oldest_ready_at,
    (
        select count(*)
        from sessions as s
        where
            s.namespace_id = %(namespace_id)s::integer
            and s.closed_at is null
            and s.receiving
            and s.seen_at > now() - interval '15 seconds'
            and s.handlers @> jsonb_build_array(
                jsonb_build_object('name', l.name, 'queue', l.queue)
            )
    )::integer as worker_count
from counted as c
inner join lanes as l on l.lane_id = c.lane_id
where
    l.namespace_id = %(namespace_id)s::integer
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
group by l.queue, l.name
order by l.queue, l.name;
