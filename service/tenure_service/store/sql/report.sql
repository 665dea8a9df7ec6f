-- name: delivery_complete :one CompletedCount
-- Records outputs in one statement, for hand-outs that this server made itself and therefore
-- knows. The caller compares the count with what it sent, and rolls back to the careful form when
-- they differ (a lease is gone) or on SQLSTATE 23505 (a hand-out had ended). What is left of a
-- lease is decided from the row that `held` has locked: another report may have spent some of it
-- while this statement waited, which the statement's own snapshot does not show. The run whose task
-- is over is told in its inbox; runs themselves are ended by the careful form.
-- Invariants: INV-02, INV-07. Locks: leases by id, NO KEY UPDATE. Index: leases_pkey,
-- deliveries_pkey.
with held as materialized (
    select l.lease_id, l.remaining
    from leases as l
    where l.lease_id = any(%(held_lease_ids)s::uuid [])
    order by l.lease_id
    for no key update of l
),
ended as (
    insert into deliveries (
        run_id, task_id, lease_id, session_id, started_at, ended_at, delivery, attempt,
        outcome, final, output, output_encoding, output_schema
    )
    select
        i.run_id,
        i.task_id,
        i.lease_id,
        i.session_id,
        now() - i.run_ms * interval '1 millisecond',
        now(),
        i.delivery,
        i.attempt,
        'DONE',
        true,
        i.output,
        i.output_encoding,
        i.output_schema
    from unnest(
        %(run_ids)s::uuid [],
        %(task_ids)s::uuid [],
        %(lease_ids)s::uuid [],
        %(session_ids)s::uuid [],
        %(run_ms)s::float8 [],
        %(deliveries)s::integer [],
        %(attempts)s::integer [],
        %(outputs)s::bytea [],
        %(output_encodings)s::text [],
        %(output_schemas)s::text []
    ) as i (
        run_id, task_id, lease_id, session_id, run_ms, delivery, attempt,
        output, output_encoding, output_schema
    )
    where i.lease_id = any(array(select lease_id from held))
    returning lease_id, run_id, task_id
),
told as (
    insert into run_inbox (run_id, child_id)
    select run_id, task_id from ended where run_id <> task_id
),
spent as materialized (
    select
        h.lease_id,
        h.remaining - count(*)::integer as left_count
    from ended as e
    inner join held as h on h.lease_id = e.lease_id
    group by h.lease_id, h.remaining
),
reduced as (
    update leases as l
    set remaining = s.left_count
    from spent as s
    where l.lease_id = s.lease_id and s.left_count > 0
),
finished as (
    delete from leases as l
    using spent as s
    where l.lease_id = s.lease_id and s.left_count <= 0
)
select count(*)::integer as delivery_count
from ended;
