-- name: version_note :exec
-- Notes versions of workflow functions that a worker came with, where something is new: a conflict
-- locks its row even if nothing is to change, and a thousand equal workers would stand in line.
-- Invariants: none. Locks: the rows that differ, in order. Index: app_versions_pkey.
insert into app_versions as f (
    namespace_id, queue, name, version, compatible_versions, pinned
)
select
    %(namespace_id)s::integer,
    i.queue,
    i.name,
    i.version,
    i.compatible_versions,
    i.pinned
from (
    select
        h.queue,
        h.name,
        h.version,
        array(select jsonb_array_elements_text(h.compatible_versions)) as compatible_versions,
        h.pinned
    from jsonb_to_recordset(%(handlers)s::jsonb) as h (
        queue text, name text, version text, compatible_versions jsonb, pinned boolean
    )
) as i
left join app_versions as v
    on v.namespace_id = %(namespace_id)s::integer and v.queue = i.queue and v.name = i.name
    and v.version = i.version
where
    (v.compatible_versions, v.pinned) is distinct from (i.compatible_versions, i.pinned)
order by i.queue, i.name, i.version
on conflict (namespace_id, queue, name, version) do update
    set
        compatible_versions = excluded.compatible_versions,
        pinned = excluded.pinned,
        seen_at = now();

-- name: version_touch :exec
-- Notes which versions workers serve now, of those that were not seen for a few seconds.
-- Invariants: INV-08. Locks: the versions, in order. Index: app_versions_pkey.
with stale as materialized (
    select v.ctid as place
    from unnest(
        %(namespace_ids)s::integer [], %(queues)s::text [], %(names)s::text [],
        %(versions)s::text []
    ) as i (namespace_id, queue, name, version)
    inner join app_versions as v
        on v.namespace_id = i.namespace_id and v.queue = i.queue and v.name = i.name
        and v.version = i.version
    where v.seen_at < coalesce(%(now)s::timestamptz, now()) - interval '3 seconds'
    order by v.namespace_id, v.queue, v.name, v.version
    for no key update of v
)
update app_versions as v
set seen_at = coalesce(%(now)s::timestamptz, now())
from stale as s
where v.ctid = s.place;

-- name: version_of_session :many SessionVersion
-- Tells which version of a workflow function sessions came with.
-- Invariants: none. Locks: none. Index: sessions_pkey.
select
    s.session_id::text,
    h.queue,
    h.name,
    h.version
from unnest(%(session_ids)s::uuid [], %(queues)s::text [], %(names)s::text [])
    as i (session_id, queue, name)
inner join sessions as s on s.session_id = i.session_id
cross join lateral jsonb_to_recordset(s.handlers) as h (
    queue text, name text, kind text, version text
)
where h.kind = 'WORKFLOW' and h.queue = i.queue and h.name = i.name;

-- name: version_orphan :many OrphanedLane
-- Finds lanes in which runs wait for a version that no worker has served for the grace, among the
-- workflows that this server's workers serve; each with the newest version of those that some
-- worker serves now. Runs of a pinned version wait on.
-- Invariants: none. Locks: none. Index: app_versions_pkey, lanes_identity_unique, ready_tasks_pkey.
select
    l.lane_id,
    l.namespace_id,
    l.queue,
    l.name,
    l.lane_key,
    l.suspect,
    n.version
from unnest(%(namespace_ids)s::integer [], %(queues)s::text [], %(names)s::text [])
    as i (namespace_id, queue, name)
inner join app_versions as v
    on v.namespace_id = i.namespace_id and v.queue = i.queue and v.name = i.name
inner join lanes as l
    on l.namespace_id = v.namespace_id and l.queue = v.queue and l.name = v.name
    and l.app_version = v.version
cross join lateral (
    select w.version
    from app_versions as w
    where
        w.namespace_id = v.namespace_id and w.queue = v.queue and w.name = v.name
        and w.version <> v.version
        and w.seen_at >= coalesce(%(now)s::timestamptz, now()) - interval '15 seconds'
    order by w.first_seen_at desc, w.version desc
    limit 1
) as n
where
    v.seen_at
    < coalesce(%(now)s::timestamptz, now()) - %(grace_ms)s::bigint * interval '1 millisecond'
    and not v.pinned
    and exists (select 1 from ready_tasks as r where r.lane_id = l.lane_id);

-- name: version_adopt :many RunAdopted
-- Moves runs that wait for versions nobody serves to the lanes of others, to their places there:
-- looks once more whether they are still orphaned, since a worker may have come back.
-- Invariants: INV-07. Locks: ready rows, skipping locked ones. Index: ready_tasks_pkey, lanes_pkey,
-- app_versions_pkey.
with orphaned as materialized (
    select
        r.lane_id,
        r.rank,
        r.seq,
        i.target_lane_id
    from unnest(%(lane_ids)s::integer [], %(target_lane_ids)s::integer [])
        as i (lane_id, target_lane_id)
    inner join lanes as l on l.lane_id = i.lane_id
    inner join app_versions as v
        on v.namespace_id = l.namespace_id and v.queue = l.queue and v.name = l.name
        and v.version = l.app_version
    inner join ready_tasks as r on r.lane_id = i.lane_id
    where
        v.seen_at
        < coalesce(%(now)s::timestamptz, now()) - %(grace_ms)s::bigint * interval '1 millisecond'
        and not v.pinned
    limit %(run_count_max)s::integer
    for update of r skip locked
),
taken as (
    delete from ready_tasks as r
    using orphaned as o
    where r.lane_id = o.lane_id and r.rank = o.rank and r.seq = o.seq
    returning
        o.target_lane_id, r.rank, r.seq, r.run_id, r.task_id, r.attempt, r.delivery, r.lost_count,
        r.ready_at, r.total_by, r.deadline_at
)
insert into ready_tasks (
    lane_id, rank, seq, run_id, task_id, attempt, delivery, lost_count, ready_at, total_by,
    deadline_at
)
select
    target_lane_id, rank, seq, run_id, task_id, attempt, delivery, lost_count, ready_at, total_by,
    deadline_at
from taken
returning lane_id, rank;
