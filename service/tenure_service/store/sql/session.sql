-- name: session_open :one SessionOpened
-- Opens a session, and remembers the worker and its handlers.
-- Invariants: none. Locks: the worker's row. Index: workers_pkey.
with known as (
    insert into workers (namespace_id, name, sdk, sdk_version, app_version)
    values (
        %(namespace_id)s::integer, %(worker)s::text, %(sdk)s::text, %(sdk_version)s::text,
        %(app_version)s::text
    )
    on conflict (namespace_id, name) do update
        set
            sdk = excluded.sdk,
            sdk_version = excluded.sdk_version,
            app_version = excluded.app_version
)
insert into sessions (namespace_id, worker, secret_hash, handlers, slots, api_key_id)
values (
    %(namespace_id)s::integer, %(worker)s::text, %(secret_hash)s::bytea, %(handlers)s::jsonb,
    %(slots)s::jsonb, %(key_id)s::uuid
)
returning session_id::text, epoch;

-- name: session_resume :many SessionOpened
-- Goes on with a session that is not closed: raises its epoch, so that the server which had it
-- can no longer act for it. No row: there is no such session, or the secret is another's.
-- Invariants: INV-04. Locks: the session. Index: sessions_pkey.
update sessions
set
    epoch = epoch + 1,
    handlers = %(handlers)s::jsonb,
    slots = %(slots)s::jsonb,
    api_key_id = %(key_id)s::uuid,
    receiving = true,
    seen_at = now()
where
    session_id = %(session_id)s::uuid
    and namespace_id = %(namespace_id)s::integer
    and secret_hash = %(secret_hash)s::bytea
    and closed_at is null
returning session_id::text, epoch;

-- name: session_close :exec
-- Closes a session of the epoch that the server holds.
-- Invariants: INV-04. Locks: the session. Index: sessions_pkey.
update sessions
set
    closed_at = now(),
    receiving = false
where
    session_id = %(session_id)s::uuid and epoch = %(epoch)s::integer and closed_at is null;

-- name: session_hold :many SessionOpened
-- Keeps a session in the epoch that the server has it in, while it acts for it. Closed or not: what
-- it left behind may still have to be ended.
-- Invariants: INV-04. Locks: the session, FOR SHARE. Index: sessions_pkey.
select
    s.session_id::text,
    s.epoch
from sessions as s
where s.session_id = %(session_id)s::uuid and s.epoch = %(epoch)s::integer
for share of s;

-- name: session_touch :exec
-- Notes which sessions of this server are alive, and which of them take tasks.
-- Invariants: none. Locks: the sessions. Index: sessions_pkey.
update sessions as s
set
    seen_at = now(),
    receiving = i.receiving,
    slots = coalesce(i.slots, s.slots)
from unnest(
    %(session_ids)s::uuid [], %(epochs)s::integer [], %(receivings)s::boolean [],
    %(slots)s::jsonb []
) as i (session_id, epoch, receiving, slots)
where s.session_id = i.session_id and s.epoch = i.epoch and s.closed_at is null;

-- name: session_gone :many SessionKey
-- Tells which of these sessions nobody can act for any more: they are closed, or not there at all.
-- Invariants: INV-04. Locks: none. Index: sessions_pkey.
select i.session_id::text
from unnest(%(session_ids)s::uuid []) as i (session_id)
left join sessions as s on s.session_id = i.session_id
where s.session_id is null or s.closed_at is not null;

-- name: session_shut_out :many SessionKey
-- Tells which of these sessions came with a key that has ended: their workers can report nothing.
-- Invariants: INV-04. Locks: none. Index: sessions_pkey, api_keys_pkey.
select s.session_id::text
from sessions as s
inner join api_keys as k on k.api_key_id = s.api_key_id
where
    s.session_id = any(%(session_ids)s::uuid [])
    and (k.revoked_at is not null or k.expires_at <= now());

-- name: session_close_lost :exec
-- Closes sessions that nobody has heard from for two minutes and that hold no lease: twice the
-- longest poll, which is heard once. A worker that comes back later gets a new session, and loses
-- nothing, because it held nothing.
-- Invariants: none. Locks: the sessions. Index: sessions_seen_idx, leases_session_idx.
update sessions as s
set
    closed_at = now(),
    receiving = false
where
    s.closed_at is null
    and s.seen_at < now() - interval '2 minutes'
    and not exists (select 1 from leases as l where l.session_id = s.session_id);

-- name: session_list :many SessionRow
-- Lists the open sessions of a namespace. A session that was not heard from for 15 seconds is not
-- receiving, whatever its server said last; after a minute it is gone, unless it renews leases,
-- which is all that a worker says that polls and is busy.
-- Invariants: none. Locks: none. Index: sessions_open_idx, leases_session_idx, api_keys_pkey.
select
    s.session_id::text,
    s.worker,
    k.api_key_id::text as key_id,
    k.name as key_name,
    w.sdk,
    w.sdk_version,
    w.app_version,
    s.handlers,
    s.slots,
    s.opened_at,
    s.seen_at,
    s.receiving and s.seen_at > now() - interval '15 seconds' as receiving,
    coalesce(
        (select sum(l.remaining) from leases as l where l.session_id = s.session_id), 0
    )::integer as held_count,
    s.seen_at < now() - interval '1 minute' and not exists (
        select 1
        from leases as l
        where l.session_id = s.session_id and l.expires_at > now()
    ) as gone
from sessions as s
inner join workers as w on w.namespace_id = s.namespace_id and w.name = s.worker
left join api_keys as k on k.api_key_id = s.api_key_id
where s.namespace_id = %(namespace_id)s::integer and s.closed_at is null
order by s.worker, s.session_id;

-- name: lease_renew :many LeaseRenewed
-- Gives leases their full duration again. A lease that is not returned is lost.
-- Invariants: INV-08. Locks: leases by id, NO KEY UPDATE. Index: leases_pkey.
with held as materialized (
    select l.lease_id
    from unnest(%(lease_ids)s::uuid [], %(secrets)s::bytea [], %(namespace_ids)s::integer [])
        as i (lease_id, secret, namespace_id)
    inner join leases as l
        on l.lease_id = i.lease_id and l.secret = i.secret and l.namespace_id = i.namespace_id
    order by l.lease_id
    for no key update of l
)
update leases as l
set expires_at = now() + %(lease_ms)s::bigint * interval '1 millisecond'
where l.lease_id = any(array(select lease_id from held))
returning l.lease_id::text, l.secret, l.namespace_id;

-- name: lease_start :exec
-- Notes that handlers have started, once for each task that the lease holds, and when the first
-- of their timeouts may be due.
-- Invariants: INV-08. Locks: the lease, NO KEY UPDATE. Index: leases_pkey, tasks_pkey,
-- task_policies_pkey.
with said as materialized (
    select distinct on (l.lease_id, i.task_id)
        l.lease_id,
        i.task_id,
        now() - i.run_ms * interval '1 millisecond' as started_at,
        least(
            (p.body #>> '{start_to_close,after_ms}')::bigint,
            (p.body #>> '{heartbeat,after_ms}')::bigint
        ) as limit_ms
    from unnest(
        %(lease_ids)s::uuid [], %(secrets)s::bytea [], %(task_ids)s::uuid [], %(run_ms)s::float8 []
    ) as i (lease_id, secret, task_id, run_ms)
    inner join leases as l
        on l.lease_id = i.lease_id and l.secret = i.secret
        and i.task_id = any(l.task_ids)
        and not i.task_id = any(coalesce(l.started_task_ids, '{}'))
    inner join tasks as t
        on t.run_id = l.run_ids[array_position(l.task_ids, i.task_id)] and t.task_id = i.task_id
    inner join task_policies as p on p.policy_id = t.policy_id
)
update leases as l
set
    started_task_ids = l.started_task_ids || n.task_ids,
    started_at = l.started_at || n.started_at,
    deadline_at = least(l.deadline_at, n.deadline_at)
from (
    select
        s.lease_id,
        array_agg(s.task_id) as task_ids,
        array_agg(s.started_at) as started_at,
        min(s.started_at + s.limit_ms * interval '1 millisecond') as deadline_at
    from said as s
    group by s.lease_id
) as n
where l.lease_id = n.lease_id;

-- name: lease_progress :exec
-- Keeps what running handlers say of themselves, the latest word of each.
-- Invariants: INV-08. Locks: the lease, NO KEY UPDATE. Index: leases_pkey.
update leases as l
set details = coalesce(l.details, '{}') || n.details
from (
    select
        i.lease_id,
        i.secret,
        jsonb_object_agg(
            i.task_id, i.details || jsonb_build_object('at', extract(epoch from now()))
        ) as details
    from unnest(
        %(lease_ids)s::uuid [], %(secrets)s::bytea [], %(task_ids)s::uuid [],
        %(details)s::jsonb []
    ) as i (lease_id, secret, task_id, details)
    group by i.lease_id, i.secret
) as n
where l.lease_id = n.lease_id and l.secret = n.secret;

-- name: lease_set_deadline :exec
-- Notes when the next timeout of locked leases may be due, and which were told of.
-- Invariants: INV-12. Locks: held by the caller. Index: leases_pkey.
update leases as l
set
    deadline_at = i.deadline_at,
    alerted = l.alerted || string_to_array(i.alerted, ' ')
from unnest(%(lease_ids)s::uuid [], %(deadlines_at)s::timestamptz [], %(alerted)s::text [])
    as i (lease_id, deadline_at, alerted)
where l.lease_id = i.lease_id;

-- name: session_poll :many SessionOpened
-- Finds the session of a worker that polls, and notes that it is alive. Such a session has no
-- secret and cannot be resumed; it goes on by the worker's name.
-- Invariants: none. Locks: the session. Index: sessions_open_idx.
update sessions
set
    seen_at = now(),
    handlers = %(handlers)s::jsonb,
    slots = %(slots)s::jsonb,
    api_key_id = %(key_id)s::uuid
where
    namespace_id = %(namespace_id)s::integer
    and worker = %(worker)s::text
    and secret_hash = %(secret_hash)s::bytea
    and closed_at is null
returning session_id::text, epoch;

-- name: session_held :one SessionHeld
-- Says whether a session holds anything.
-- Invariants: none. Locks: none. Index: leases_session_idx.
select exists (
    select 1 from leases as l where l.session_id = %(session_id)s::uuid
) as holding;

-- name: session_takes :one SessionTakes
-- Says whether a session may be given tasks in the epoch that the server has it in.
-- Invariants: INV-04. Locks: none. Index: sessions_pkey.
select exists (
    select 1
    from sessions as s
    where
        s.session_id = %(session_id)s::uuid
        and s.epoch = %(epoch)s::integer
        and s.closed_at is null
) as takes;
