-- name: api_key_insert :one ApiKeyRow
-- Makes a key, which ends no later than the one that makes it.
-- Invariants: none. Locks: the unique keys. Index: api_keys_hash_unique, api_keys_pkey.
with made as (
    insert into api_keys (
        namespace_id, name, hash, scopes, queue_globs, created_by, expires_at
    )
    values (
        %(namespace_id)s::integer,
        %(name)s::text,
        %(hash)s::bytea,
        %(scopes)s::text [],
        %(queue_globs)s::text [],
        %(created_by)s::text,
        least(
            now() + %(lifetime_ms)s::bigint * interval '1 millisecond',
            (select m.expires_at from api_keys as m where m.api_key_id = %(maker_id)s::uuid)
        )
    )
    returning
        api_key_id, namespace_id, name, hash, scopes, queue_globs, created_at, expires_at,
        revoked_at, used_at, created_by
)
select
    k.api_key_id::text as key_id,
    k.namespace_id,
    n.name as namespace,
    k.name,
    k.hash,
    k.scopes,
    k.queue_globs,
    k.created_at,
    k.expires_at,
    k.revoked_at,
    k.used_at,
    k.created_by,
    false as ended
from made as k
left join namespaces as n on n.namespace_id = k.namespace_id;

-- name: api_key_list :many ApiKeyRow
-- Lists keys, oldest first; ended ones only when asked for. There are tens of them.
-- Invariants: none. Locks: none. Index: api_keys_pkey.
select
    k.api_key_id::text as key_id,
    k.namespace_id,
    n.name as namespace,
    k.name,
    k.hash,
    k.scopes,
    k.queue_globs,
    k.created_at,
    k.expires_at,
    k.revoked_at,
    k.used_at,
    k.created_by,
    k.revoked_at is not null or coalesce(k.expires_at <= now(), false) as ended
from api_keys as k
left join namespaces as n on n.namespace_id = k.namespace_id
where
    %(include_ended)s::boolean
    or (k.revoked_at is null and (k.expires_at is null or k.expires_at > now()))
order by k.api_key_id;

-- name: api_key_workers :many ApiKeyWorkers
-- Counts the workers that take tasks with each key. Few sessions are open at a time.
-- Invariants: none. Locks: none. Index: sessions_open_idx.
select
    s.api_key_id::text as key_id,
    count(*)::integer as worker_count
from sessions as s
where
    s.closed_at is null
    and s.receiving
    and s.seen_at > now() - interval '15 seconds'
    and s.api_key_id is not null
group by s.api_key_id;

-- name: api_key_revoke :many ApiKeyRow
-- Ends a key, and gives it; one that has ended stays as it was. No row: there is none, or it is not
-- of the namespace that the caller is bound to.
-- Invariants: none. Locks: the key. Index: api_keys_pkey.
with revoked as (
    update api_keys
    set revoked_at = coalesce(revoked_at, now())
    where
        api_key_id = %(key_id)s::uuid
        and (
            %(namespace_id)s::integer is null
            or namespace_id = %(namespace_id)s::integer
        )
    returning
        api_key_id, namespace_id, name, hash, scopes, queue_globs, created_at, expires_at,
        revoked_at, used_at, created_by
)
select
    k.api_key_id::text as key_id,
    k.namespace_id,
    n.name as namespace,
    k.name,
    k.hash,
    k.scopes,
    k.queue_globs,
    k.created_at,
    k.expires_at,
    k.revoked_at,
    k.used_at,
    k.created_by,
    true as ended
from revoked as k
left join namespaces as n on n.namespace_id = k.namespace_id;

-- name: api_key_used :exec
-- Notes that keys were used, at most once a minute each.
-- Invariants: none. Locks: the keys, skipping locked ones. Index: api_keys_pkey.
with stale as materialized (
    select k.api_key_id
    from api_keys as k
    where
        k.api_key_id = any(%(key_ids)s::uuid [])
        and (k.used_at is null or k.used_at < now() - interval '1 minute')
    for update of k skip locked
)
update api_keys
set used_at = now()
where api_key_id = any(array(select api_key_id from stale));

-- name: task_queue_list :many TaskQueueRow
-- Says on which queues tasks are.
-- Invariants: none. Locks: none. Index: tasks_pkey, lanes_pkey.
select
    t.task_id::text,
    l.queue
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as w (run_id, task_id)
inner join tasks as t on t.run_id = w.run_id and t.task_id = w.task_id
inner join lanes as l on l.lane_id = t.lane_id
where t.namespace_id = %(namespace_id)s::integer;

-- name: audit_event_insert :exec
-- Adds what an operator did.
-- Invariants: none. Locks: none. Index: audit_events_pkey.
insert into audit_events (namespace, actor, action, request, outcome, peer)
values (
    %(namespace)s::text,
    %(actor)s::text,
    %(action)s::text,
    %(request)s::text,
    %(outcome)s::text,
    %(peer)s::text
);

-- name: audit_event_list :many AuditEventRow
-- Lists what operators did before an event, newest first: in one namespace, or also in none. An
-- actor is named in full, or a key (`key:NAME:ID`) by its name or its id.
-- Invariants: none. Locks: none. Index: audit_events_pkey, backwards.
select
    e.audit_event_id,
    e.at,
    e.namespace,
    e.actor,
    e.action,
    e.request,
    e.outcome,
    e.peer
from audit_events as e
where
    e.audit_event_id < %(before)s::bigint
    and (
        e.namespace = %(namespace)s::text
        or (%(include_general)s::boolean and e.namespace is null)
    )
    and (
        %(actor)s::text is null
        or e.actor = %(actor)s::text
        or (
            e.actor like 'key:%%'
            and %(actor)s::text in (substr(e.actor, 5, length(e.actor) - 41), right(e.actor, 36))
        )
    )
    and (%(action)s::text is null or e.action = %(action)s::text)
    and (%(since)s::timestamptz is null or e.at >= %(since)s::timestamptz)
    and (%(until)s::timestamptz is null or e.at < %(until)s::timestamptz)
    and not (%(refused_only)s::boolean and split_part(e.outcome, ':', 1) = 'OK')
    and not (%(changes_only)s::boolean and e.action ~ '^(Get|List)')
order by e.audit_event_id desc
limit %(row_count_max)s::integer;
