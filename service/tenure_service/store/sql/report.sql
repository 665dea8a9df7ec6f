-- name: delivery_complete :one CompletedCount
-- Records outputs in one statement, for hand-outs that this server made itself and therefore
-- knows. The caller compares the count with what it sent, and rolls back to the careful form when
-- they differ (a lease is gone) or on SQLSTATE 23505 (a hand-out had ended).
-- Invariants: INV-07. Locks: leases by id, NO KEY UPDATE. Index: leases_pkey, deliveries_pkey.
with held as materialized (
    select l.lease_id
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
    returning lease_id
),
spent as materialized (
    select
        lease_id,
        count(*)::integer as delivery_count
    from ended
    group by lease_id
),
reduced as (
    update leases as l
    set remaining = l.remaining - s.delivery_count
    from spent as s
    where l.lease_id = s.lease_id and l.remaining > s.delivery_count
),
finished as (
    delete from leases as l
    using spent as s
    where l.lease_id = s.lease_id and l.remaining <= s.delivery_count
)
select count(*)::integer as delivery_count
from ended;
