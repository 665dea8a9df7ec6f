-- name: activation_get :many ActivationRow
-- Reads what runs are handed with, beside their inputs and their steps: one that was woken because
-- it is to be cancelled is told so at once.
-- Invariants: none. Locks: none. Index: runs_pkey, tasks_pkey, leases_pkey, cancel_requests_pkey.
select
    r.run_id::text,
    r.created_at,
    r.version,
    t.key,
    l.lost_counts[array_position(l.task_ids, i.run_id)]::integer as recovery_count,
    r.parent_run_id::text,
    r.attributes,
    c.reason as cancel_reason,
    greatest(0, extract(epoch from c.deadline_at - now()) * 1000)::bigint as cancel_grace_ms
from unnest(%(lease_ids)s::uuid [], %(run_ids)s::uuid []) as i (lease_id, run_id)
inner join runs as r on r.run_id = i.run_id
inner join tasks as t on t.run_id = i.run_id and t.task_id = i.run_id
inner join leases as l on l.lease_id = i.lease_id
left join cancel_requests as c on c.run_id = i.run_id and c.task_id = i.run_id;
