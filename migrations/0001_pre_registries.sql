-- Why: namespaces, what is registered in them, and who works for them.
-- Locks taken: none on existing tables.
-- Safe with versions: any; this is the first migration.

create type delivery_outcome as enum (
    'DONE', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'LOST', 'RELEASED', 'SUSPENDED', 'RESCHEDULED'
);
create type dead_letter_reason as enum ('ATTEMPTS_EXHAUSTED', 'NON_RETRYABLE', 'LEASE_LOST');
create type dead_letter_state as enum ('OPEN', 'REPLAYED', 'DISCARDED');
create type timer_kind as enum ('DELAY', 'BACKOFF');

create table namespaces (
    namespace_id integer generated always as identity primary key,
    name text not null,
    created_at timestamptz not null default now(),
    constraint namespaces_name_unique unique (name),
    constraint namespaces_name_form check (name ~ '^[a-z0-9_-]{1,100}$')
);
insert into namespaces (name) values ('default');

-- Keys are stored as hashes only. A null namespace means every namespace.
create table api_keys (
    api_key_id uuid primary key default uuidv7(),
    namespace_id integer,
    name text not null,
    hash bytea not null,
    scopes text [] not null,
    queue_globs text [] not null default '{*}',
    created_at timestamptz not null default now(),
    revoked_at timestamptz,
    constraint api_keys_hash_unique unique (hash),
    constraint api_keys_scopes_known check (scopes <@ array['worker', 'client', 'admin'])
);

-- An operator's settings of a queue. A queue without a row has none.
create table queues (
    namespace_id integer not null,
    name text not null,
    paused_at timestamptz,
    constraint queues_pkey primary key (namespace_id, name)
);

-- What code declares and what an operator overrides, by task name.
create table task_defs (
    namespace_id integer not null,
    name text not null,
    declared jsonb,
    app_version text not null default '',
    override jsonb,
    updated_at timestamptz not null default now(),
    constraint task_defs_pkey primary key (namespace_id, name)
);

-- Complete policies, each stored once and never changed: tasks point here instead of carrying a
-- copy, which would be the widest column of a small task.
create table task_policies (
    policy_id integer generated always as identity primary key,
    body jsonb not null,
    digest bytea not null,
    constraint task_policies_digest_unique unique (digest)
);

-- The unit of matching, ordering and fairness. A worker takes only from lanes it can serve, so a
-- task without a worker never stands in another's way. Tasks that lost their worker twice move to
-- the suspect lane beside their own.
create table lanes (
    lane_id integer generated always as identity primary key,
    namespace_id integer not null,
    queue text not null,
    name text not null,
    app_version text not null default '',
    lane_key text not null default '',
    suspect boolean not null default false,
    constraint lanes_identity_unique unique (
        namespace_id, queue, name, app_version, lane_key, suspect
    )
);

create table workers (
    namespace_id integer not null,
    name text not null,
    sdk text not null default '',
    sdk_version text not null default '',
    app_version text not null default '',
    first_seen_at timestamptz not null default now(),
    constraint workers_pkey primary key (namespace_id, name)
);

-- A worker's presence. A resume raises the epoch; a server acts for a session only while the
-- epoch is the one it was given.
create table sessions (
    session_id uuid primary key default uuidv7(),
    namespace_id integer not null,
    worker text not null,
    secret_hash bytea not null,
    epoch integer not null default 1,
    handlers jsonb not null,
    slots jsonb not null,
    receiving boolean not null default true,
    opened_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    closed_at timestamptz
);
create index sessions_open_idx on sessions (namespace_id, worker) where closed_at is null;
create index sessions_seen_idx on sessions (seen_at);
