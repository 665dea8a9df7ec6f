-- name: doctor_uuid :one DoctorUuid
-- Makes an id as the tables' defaults do.
-- Invariants: none. Locks: none. Index: none.
select pg_catalog.uuidv7()::text as id;

-- name: doctor_setting_list :many DoctorSetting
-- Reads settings of PostgreSQL as they hold for this role in this database, in their base units.
-- A setting that this PostgreSQL does not have has no row.
-- Invariants: none. Locks: none. Index: none.
select
    s.name::text,
    s.setting::text,
    s.unit::text,
    s.source::text
from pg_settings as s
where s.name = any(%(names)s::text []);

-- name: doctor_database :one DoctorDatabase
-- Reads what the database as a whole says of itself, and how many connections Tenure can have: what
-- other programs hold is taken off.
-- Invariants: none. Locks: none. Index: none.
select
    d.datname::text as name,
    clock_timestamp() as now,
    pg_is_in_recovery() as in_recovery,
    pg_database_size(d.oid) as byte_count,
    least(
        current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer
        - current_setting('reserved_connections')::integer
        - a.other_count,
        nullif(d.datconnlimit, -1),
        nullif(r.rolconnlimit, -1)
    )::integer as connection_count_max,
    a.other_count::integer as connection_count_other,
    a.own_count::integer as connection_count,
    a.server_count::integer as server_count,
    a.hidden_count::integer as hidden_count
from pg_database as d
inner join pg_roles as r on r.rolname = current_user
cross join lateral (
    select
        count(*) filter (where x.own) as own_count,
        count(*) filter (where not x.own) as other_count,
        -- Each process of a server has one connection that listens.
        count(*) filter (where x.own and x.application_name = 'tenure listen') as server_count,
        count(*) filter (where x.hidden) as hidden_count
    from (
        select
            c.application_name,
            c.datid = d.oid and c.application_name like 'tenure %%' as own,
            c.datid = d.oid and c.backend_type is null as hidden
        from pg_stat_activity as c
        where
            c.datid is not null
            and c.pid <> pg_backend_pid()
            -- Of other roles' connections the type is hidden from roles without pg_monitor.
            and coalesce(c.backend_type, 'client backend') = 'client backend'
    ) as x
) as a
where d.datname = current_database();

-- name: doctor_right_list :many DoctorRight
-- Lists what this role may not do and a server must: use and extend the schema (or make it), read
-- and write its tables, and own those that are partitioned.
-- Invariants: none. Locks: none. Index: catalogue.
select
    'database ' || current_database() as thing,
    'create' as missing
where
    not exists (select 1 from pg_namespace as n where n.nspname = %(schema)s::text)
    and not has_database_privilege(current_database(), 'create')
union all
select
    'schema ' || n.nspname,
    p.name
from pg_namespace as n
cross join unnest(array['usage', 'create']) as p (name)
where n.nspname = %(schema)s::text and not has_schema_privilege(n.oid, p.name)
union all
select
    'table ' || c.relname,
    p.name
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid and c.relkind in ('r', 'p')
cross join unnest(array['select', 'insert', 'update', 'delete']) as p (name)
where n.nspname = %(schema)s::text and not has_table_privilege(c.oid, p.name)
union all
select
    'sequence ' || c.relname,
    'usage'
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid and c.relkind = 'S'
-- A table's own sequence is used with the right to insert into it.
where
    n.nspname = %(schema)s::text
    -- The function refuses anything else, and may be asked before the join is made.
    and case when c.relkind = 'S' then not has_sequence_privilege(c.oid, 'usage') else false end
    and not exists (
        select 1
        from pg_depend as e
        where e.classid = 'pg_class'::regclass and e.objid = c.oid and e.deptype = 'i'
    )
union all
select
    'table ' || c.relname,
    'ownership'
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid and c.relkind = 'p'
where
    n.nspname = %(schema)s::text
    and c.relname = any(%(parents)s::text [])
    and not pg_has_role(c.relowner, 'usage');

-- name: doctor_table_list :many DoctorTable
-- Reads of each table that holds rows its storage options, and what vacuum left and when it came
-- last; a table that it never came to counts from when both server and table were there.
-- Invariants: none. Locks: none. Index: catalogue.
select
    c.relname::text as name,
    coalesce(c.reloptions, '{}') as options,
    coalesce(s.n_live_tup, 0)::bigint as live_count,
    coalesce(s.n_dead_tup, 0)::bigint as dead_count,
    coalesce(%(now)s::timestamptz, now()) - greatest(
        s.last_autovacuum,
        s.last_vacuum,
        pg_postmaster_start_time(),
        (select min(m.applied_at) from schema_migrations as m)
    ) as unvacuumed_duration
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid and c.relkind = 'r'
left join pg_stat_all_tables as s on s.relid = c.oid
where n.nspname = %(schema)s::text
order by c.relname;

-- name: doctor_part_list :many DoctorPart
-- Lists the indexes, constraints and triggers of the schema, and whether each is in force.
-- Invariants: none. Locks: none. Index: catalogue.
select
    'index' as kind,
    c.relname::text as table_name,
    x.relname::text as name,
    i.indisvalid and i.indisready as sound
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid
inner join pg_index as i on i.indrelid = c.oid
inner join pg_class as x on x.oid = i.indexrelid
where n.nspname = %(schema)s::text
union all
select
    'constraint',
    c.relname::text,
    k.conname::text,
    k.convalidated and k.conenforced
    and coalesce((select i.indisvalid from pg_index as i where i.indexrelid = k.conindid), true)
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid
inner join pg_constraint as k on k.conrelid = c.oid
where n.nspname = %(schema)s::text
union all
select
    'trigger',
    c.relname::text,
    g.tgname::text,
    g.tgenabled in ('O', 'A')
from pg_namespace as n
inner join pg_class as c on c.relnamespace = n.oid
inner join pg_trigger as g on g.tgrelid = c.oid and not g.tgisinternal
where n.nspname = %(schema)s::text
order by kind, table_name, name;

-- name: doctor_column_list :many DoctorColumn
-- Lists the columns of the tables of the schema, as parents have them.
-- Invariants: none. Locks: none. Index: catalogue.
select
    c.relname::text as table_name,
    a.attname::text as name,
    format_type(a.atttypid, a.atttypmod) as type,
    a.attnotnull as required,
    pg_get_expr(d.adbin, d.adrelid) as initial
from pg_namespace as n
inner join pg_class as c
    on c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relispartition
inner join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where n.nspname = %(schema)s::text
order by c.relname, a.attnum;

-- name: doctor_function_list :many DoctorFunction
-- Lists the functions of the schema.
-- Invariants: none. Locks: none. Index: catalogue.
select
    p.proname::text as name,
    p.prosrc as body
from pg_namespace as n
inner join pg_proc as p on p.pronamespace = n.oid
where n.nspname = %(schema)s::text
order by p.proname;

-- name: doctor_holder_list :many DoctorHolder
-- Lists what keeps vacuum from removing dead rows, or the log from being recycled, for long: open
-- and prepared transactions of this database, and replication slots that nobody reads.
-- Invariants: none. Locks: none. Index: none.
select
    'transaction' as kind,
    a.pid::text as name,
    concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state) as holder,
    coalesce(%(now)s::timestamptz, now()) - a.xact_start as held_duration
from pg_stat_activity as a
where
    a.datname = current_database()
    and a.pid <> pg_backend_pid()
    and a.xact_start <= coalesce(%(now)s::timestamptz, now()) - %(held)s::interval
    -- A vacuum holds nothing back.
    and a.backend_type <> 'autovacuum worker'
    and not exists (select 1 from pg_stat_progress_vacuum as v where v.pid = a.pid)
union all
select
    'prepared transaction',
    p.gid,
    p.owner::text,
    coalesce(%(now)s::timestamptz, now()) - p.prepared
from pg_prepared_xacts as p
where
    p.database = current_database()
    and p.prepared <= coalesce(%(now)s::timestamptz, now()) - %(held)s::interval
union all
select
    'replication slot',
    s.slot_name::text,
    s.slot_type || ', ' || coalesce(s.wal_status, 'no log kept'),
    coalesce(%(now)s::timestamptz, now()) - s.inactive_since
from pg_replication_slots as s
where
    not s.active
    and not s.temporary
    and (s.restart_lsn is not null or s.xmin is not null or s.catalog_xmin is not null)
    and coalesce(s.database, current_database()) = current_database()
    and s.inactive_since <= coalesce(%(now)s::timestamptz, now()) - %(held)s::interval
order by held_duration desc;

-- name: doctor_running_list :many DoctorRunning
-- Lists tasks, by name, that have run for long without a limit: nothing would end them.
-- Invariants: none. Locks: none. Index: none, leases are few; tasks_pkey, deliveries_pkey.
with running as materialized (
    select
        m.run_id,
        m.task_id,
        m.delivery,
        l.started_at[array_position(l.started_task_ids, m.task_id)] as started_at
    from leases as l
    cross join lateral unnest(l.run_ids, l.task_ids, l.deliveries) as m (run_id, task_id, delivery)
    where m.task_id = any(l.started_task_ids)
)
select
    n.name as namespace,
    h.queue,
    h.name,
    count(*)::integer as task_count,
    (array_agg(r.task_id::text order by r.started_at, r.task_id))[1] as task_id,
    coalesce(%(now)s::timestamptz, now()) - min(r.started_at) as run_duration
from running as r
inner join tasks as t on t.run_id = r.run_id and t.task_id = r.task_id
inner join task_policies as p on p.policy_id = t.policy_id
inner join lanes as h on h.lane_id = t.lane_id
inner join namespaces as n on n.namespace_id = h.namespace_id
where
    r.started_at <= coalesce(%(now)s::timestamptz, now()) - %(run)s::interval
    and (p.body #>> '{start_to_close,after_ms}') is null
    and (p.body #>> '{total,after_ms}') is null
    and not exists (
        select 1
        from deliveries as d
        where d.run_id = r.run_id and d.task_id = r.task_id and d.delivery = r.delivery
    )
group by n.name, h.queue, h.name
order by min(r.started_at)
limit 20;

-- name: doctor_deaf_list :many DoctorDeaf
-- Lists workers whose leases are renewed although no server has had their stream for a while: they
-- hold work and can be given none. A worker that polls has no stream.
-- Invariants: none. Locks: none. Index: leases_session_idx.
select
    n.name as namespace,
    s.worker,
    s.session_id::text,
    sum(l.remaining)::integer as held_count,
    coalesce(%(now)s::timestamptz, now()) - s.seen_at as silent_duration
from sessions as s
inner join namespaces as n on n.namespace_id = s.namespace_id
inner join leases as l
    on l.session_id = s.session_id and l.expires_at > coalesce(%(now)s::timestamptz, now())
where
    s.closed_at is null
    and s.secret_hash <> %(polling_hash)s::bytea
    and s.seen_at <= coalesce(%(now)s::timestamptz, now()) - %(silent)s::interval
group by n.name, s.worker, s.session_id, s.seen_at
order by s.seen_at
limit 20;

-- name: doctor_unserved_list :many DoctorUnserved
-- Lists what tasks wait for in vain: names that no worker has ever registered, and for a while
-- also those that no worker serves on that queue. A worker that polls is heard from when it polls
-- and when it renews a lease.
-- Invariants: none. Locks: none. Index: ready_tasks_pkey, task_defs_pkey, sessions_open_idx,
-- leases_session_idx.
select
    n.name as namespace,
    l.queue,
    l.name,
    f.registered,
    f.paused,
    coalesce(%(now)s::timestamptz, now()) - min(r.ready_at) as wait_duration
from lanes as l
inner join namespaces as n on n.namespace_id = l.namespace_id
cross join lateral (
    select x.ready_at
    from ready_tasks as x
    where x.lane_id = l.lane_id
    order by x.rank, x.seq
    limit 1
) as r
cross join lateral (
    select exists (
        select 1
        from task_defs as d
        where
            d.namespace_id = l.namespace_id and d.name = l.name
            -- An operator may have set something for a name that no code has.
            and d.declared is not null
    ) as registered,
    exists (
        select 1
        from queues as q
        where q.namespace_id = l.namespace_id and q.name = l.queue and q.paused_at is not null
    ) as paused
) as f
where
    not f.registered
    or (
        r.ready_at < coalesce(%(now)s::timestamptz, now()) - %(waited)s::interval
        and not exists (
            select 1
            from sessions as s
            where
                s.namespace_id = l.namespace_id
                and s.closed_at is null
                and s.handlers @> jsonb_build_array(
                    jsonb_build_object('name', l.name, 'queue', l.queue)
                )
                and (
                    s.seen_at > coalesce(%(now)s::timestamptz, now()) - %(silent)s::interval
                    or exists (
                        select 1
                        from leases as h
                        where
                            h.session_id = s.session_id
                            and h.expires_at > coalesce(%(now)s::timestamptz, now())
                    )
                )
        )
    )
group by n.name, l.queue, l.name, f.registered, f.paused
order by min(r.ready_at)
limit 20;

-- name: doctor_dead_list :many DoctorDead
-- Counts, by name and reason, the open dead letters of late.
-- Invariants: INV-13. Locks: none. Index: dead_letters_listing_idx.
select
    n.name as namespace,
    l.queue,
    l.name,
    g.reason::text,
    count(*)::integer as task_count
from namespaces as n
inner join dead_letters as g
    on g.namespace_id = n.namespace_id and g.state = 'OPEN'
    and g.died_at > coalesce(%(now)s::timestamptz, now()) - %(late)s::interval
inner join lanes as l on l.lane_id = g.lane_id
group by n.name, l.queue, l.name, g.reason
order by count(*) desc, n.name, l.queue, l.name
limit 20;
