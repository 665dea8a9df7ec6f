-- name: task_insert :exec
-- Enqueues tasks: the task row, and its one live row, ready or timed, in the order of the arrays,
-- so that a lane's order is the caller's. The ids come from id_make.
-- Invariants: INV-07. Locks: none. Index: none.
with input as materialized (
    -- tidy: one statement, so that a task and the row where it is live are stored together
    select
        i.id,
        i.namespace_id,
        i.lane_id,
        i.policy_id,
        i.priority,
        i.input,
        i.input_encoding,
        i.input_schema,
        i.key,
        i.traceparent,
        i.delay_ms,
        i.start_ms,
        coalesce(%(now)s::timestamptz, now()) as enqueued_at,
        coalesce(%(now)s::timestamptz, now()) + i.total_ms * interval '1 millisecond' as total_by
    from unnest(
        %(ids)s::uuid [],
        %(namespace_ids)s::integer [],
        %(lane_ids)s::integer [],
        %(policy_ids)s::integer [],
        %(priorities)s::smallint [],
        %(inputs)s::bytea [],
        %(input_encodings)s::text [],
        %(input_schemas)s::text [],
        %(keys)s::text [],
        %(traceparents)s::text [],
        %(delays_ms)s::bigint [],
        %(starts_ms)s::bigint [],
        %(totals_ms)s::bigint []
    ) as i (
        id, namespace_id, lane_id, policy_id, priority, input, input_encoding, input_schema,
        key, traceparent, delay_ms, start_ms, total_ms
    )
),
stored as (
    insert into tasks (
        run_id, task_id, namespace_id, lane_id, policy_id, priority,
        input, input_encoding, input_schema, key, traceparent
    )
    select
        id, id, namespace_id, lane_id, policy_id, priority,
        input, input_encoding, input_schema, key, traceparent
    from input
),
ready as (
    insert into ready_tasks (lane_id, rank, run_id, task_id, total_by, deadline_at)
    select
        lane_id, -priority, id, id, total_by,
        least(total_by, enqueued_at + start_ms * interval '1 millisecond')
    from input
    where delay_ms is null
)
insert into timers (
    fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count, rank, kind,
    total_by, start_ms
)
select
    least(total_by, enqueued_at + delay_ms * interval '1 millisecond'),
    id,
    id,
    namespace_id,
    lane_id,
    1,
    1,
    0,
    -priority,
    'DELAY',
    total_by,
    start_ms
from input
where delay_ms is not null;

-- name: id_make :many IdMade
-- Makes ids in rising order. They are made before anything is written, so that keys and requests
-- can name them in one insert.
-- Invariants: INV-06. Locks: none. Index: none.
with made as materialized (
    select uuidv7() as id
    from generate_series(1, %(id_count)s::integer)
)
select id::text
from made;

-- name: request_claim :many RequestClaimed
-- Claims the request ids of batched calls, with what they will answer. A request that is not
-- returned was answered before, or is being answered by a transaction that this insert waited for.
-- Invariants: INV-03. Locks: the unique keys, in order. Index: requests_pkey.
insert into requests (namespace_id, request_id, kind, digest, answer)
select
    i.namespace_id,
    i.request_id,
    i.kind,
    i.digest,
    i.answer
from unnest(
    %(namespace_ids)s::integer [],
    %(request_ids)s::uuid [],
    %(kinds)s::text [],
    %(digests)s::bytea [],
    %(answers)s::bytea []
) as i (namespace_id, request_id, kind, digest, answer)
order by i.namespace_id, i.request_id
on conflict do nothing
returning namespace_id, request_id::text;

-- name: request_answer :exec
-- Changes what requests answer that this transaction has claimed.
-- Invariants: INV-03. Locks: held by the caller. Index: requests_pkey.
update requests as r
set answer = i.answer
from unnest(%(namespace_ids)s::integer [], %(request_ids)s::uuid [], %(answers)s::bytea [])
    as i (namespace_id, request_id, answer)
where r.namespace_id = i.namespace_id and r.request_id = i.request_id;

-- name: request_get :many RequestRow
-- Reads back what earlier calls with these request ids answered.
-- Invariants: INV-03. Locks: none. Index: requests_pkey.
select
    r.namespace_id,
    r.request_id::text,
    r.kind,
    r.digest,
    r.answer
from unnest(%(namespace_ids)s::integer [], %(request_ids)s::uuid []) as i (namespace_id, request_id)
inner join requests as r
    on r.namespace_id = i.namespace_id and r.request_id = i.request_id;

-- name: request_delete_old :exec
-- Forgets what calls answered more than 24 hours ago.
-- Invariants: none. Locks: the rows. Index: requests_requested_idx.
delete from requests
where requested_at < coalesce(%(now)s::timestamptz, now()) - interval '24 hours';

-- name: key_lock_timeout :exec
-- Makes this transaction wait for keys of others for a moment only: its batch is cut in two then,
-- so that one contended key does not hold up the others.
-- Invariants: INV-14. Locks: none. Index: none.
set local lock_timeout = '200ms';

-- name: key_claim :many KeyClaimed
-- Claims idempotency keys for new tasks. A key that is not returned stands already; of two equal
-- keys in one call the first claims.
-- Invariants: INV-09. Locks: the unique keys, in order. Index: idempotency_keys_pkey.
insert into idempotency_keys (
    namespace_id, kind, key, run_id, task_id, name, input_hash, expires_at
)
select
    i.namespace_id,
    i.kind,
    i.key,
    i.id,
    i.id,
    i.name,
    i.input_hash,
    coalesce(%(now)s::timestamptz, now()) + i.key_ms * interval '1 millisecond'
from unnest(
    %(namespace_ids)s::integer [],
    %(kinds)s::text [],
    %(keys)s::text [],
    %(ids)s::uuid [],
    %(names)s::text [],
    %(input_hashes)s::bytea [],
    %(keys_ms)s::bigint []
) as i (namespace_id, kind, key, id, name, input_hash, key_ms)
order by i.namespace_id, i.kind, i.key, i.id
on conflict do nothing
returning namespace_id, kind, key, task_id::text;

-- name: key_lock :many KeyRow
-- Reads the keys that stand, and keeps them from expiring or being claimed meanwhile.
-- Invariants: INV-09. Locks: keys FOR UPDATE, in order. Index: idempotency_keys_pkey.
select
    k.namespace_id,
    k.kind,
    k.key,
    k.run_id::text,
    k.task_id::text,
    k.name,
    k.input_hash,
    k.expires_at <= coalesce(%(now)s::timestamptz, now()) as expired
from idempotency_keys as k
where
    (k.namespace_id, k.kind, k.key) in (
        select
            i.namespace_id,
            i.kind,
            i.key
        from unnest(
            %(namespace_ids)s::integer [], %(kinds)s::text [], %(keys)s::text []
        ) as i (namespace_id, kind, key)
    )
order by k.namespace_id, k.kind, k.key
for update of k;

-- name: key_take_over :exec
-- Gives expired keys, locked by key_lock, to new tasks.
-- Invariants: INV-09. Locks: held by the caller. Index: idempotency_keys_pkey.
update idempotency_keys as k
set
    run_id = i.id,
    task_id = i.id,
    name = i.name,
    input_hash = i.input_hash,
    expires_at = coalesce(%(now)s::timestamptz, now()) + i.key_ms * interval '1 millisecond'
from unnest(
    %(namespace_ids)s::integer [],
    %(kinds)s::text [],
    %(keys)s::text [],
    %(ids)s::uuid [],
    %(names)s::text [],
    %(input_hashes)s::bytea [],
    %(keys_ms)s::bigint []
) as i (namespace_id, kind, key, id, name, input_hash, key_ms)
where k.namespace_id = i.namespace_id and k.kind = i.kind and k.key = i.key;

-- name: key_delete_expired :exec
-- Forgets keys that are out of force.
-- Invariants: none. Locks: the rows, skipping locked ones. Index: idempotency_keys_expires_idx.
delete from idempotency_keys
where (namespace_id, kind, key) in (
    select
        k.namespace_id,
        k.kind,
        k.key
    from idempotency_keys as k
    where k.expires_at <= coalesce(%(now)s::timestamptz, now())
    limit 10000
    for update skip locked
);
