-- The schema after every migration; written by `make gen`, compared by `make check`.

CREATE SCHEMA tenure;

CREATE TYPE tenure.dead_letter_reason AS ENUM (
    'ATTEMPTS_EXHAUSTED',
    'NON_RETRYABLE',
    'LEASE_LOST'
);

CREATE TYPE tenure.dead_letter_state AS ENUM (
    'OPEN',
    'REPLAYED',
    'DISCARDED'
);

CREATE TYPE tenure.delivery_outcome AS ENUM (
    'DONE',
    'FAILED',
    'TIMED_OUT',
    'CANCELLED',
    'LOST',
    'RELEASED',
    'SUSPENDED',
    'RESCHEDULED'
);

CREATE TYPE tenure.run_blocked AS ENUM (
    'RECOVERIES_EXHAUSTED',
    'HISTORY_MISMATCH'
);

CREATE TYPE tenure.run_status AS ENUM (
    'OPEN',
    'WAITING',
    'PAUSED',
    'BLOCKED',
    'COMPLETED',
    'FAILED',
    'CANCELLED',
    'TIMED_OUT',
    'TERMINATED',
    'CONTINUED'
);

CREATE TYPE tenure.step_kind AS ENUM (
    'CALL',
    'TASK',
    'CHILD',
    'SLEEP',
    'CHOICE',
    'PATCH'
);

CREATE TYPE tenure.timer_kind AS ENUM (
    'DELAY',
    'BACKOFF',
    'WAIT'
);

CREATE FUNCTION tenure.audit_events_refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    raise exception 'audit events are only ever added'
    using errcode = 'restrict_violation';
end
$$;

CREATE TABLE tenure.api_keys (
    api_key_id uuid DEFAULT uuidv7() NOT NULL,
    namespace_id integer,
    name text NOT NULL,
    hash bytea NOT NULL,
    scopes text[] NOT NULL,
    queue_globs text[] DEFAULT '{*}'::text[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    revoked_at timestamp with time zone,
    created_by text,
    expires_at timestamp with time zone,
    used_at timestamp with time zone,
    CONSTRAINT api_keys_scopes_known CHECK ((scopes <@ ARRAY['worker'::text, 'client'::text, 'admin'::text]))
);

CREATE TABLE tenure.app_versions (
    namespace_id integer NOT NULL,
    queue text NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    compatible_versions text[] DEFAULT '{}'::text[] NOT NULL,
    pinned boolean DEFAULT false NOT NULL,
    first_seen_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tenure.audit_events (
    audit_event_id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    namespace text,
    actor text NOT NULL,
    action text NOT NULL,
    request text NOT NULL,
    outcome text NOT NULL,
    peer text NOT NULL
);

ALTER TABLE tenure.audit_events ALTER COLUMN audit_event_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.audit_events_audit_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.cancel_requests (
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    namespace_id integer NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    reason text DEFAULT ''::text NOT NULL
);

CREATE TABLE tenure.dead_letters (
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    died_at timestamp with time zone DEFAULT now() NOT NULL,
    namespace_id integer NOT NULL,
    lane_id integer NOT NULL,
    delivery integer NOT NULL,
    attempt integer NOT NULL,
    reason tenure.dead_letter_reason NOT NULL,
    state tenure.dead_letter_state DEFAULT 'OPEN'::tenure.dead_letter_state NOT NULL
);

CREATE TABLE tenure.deliveries (
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    lease_id uuid,
    session_id uuid,
    started_at timestamp with time zone,
    ended_at timestamp with time zone DEFAULT now() NOT NULL,
    delivery integer NOT NULL,
    attempt integer NOT NULL,
    outcome tenure.delivery_outcome NOT NULL,
    final boolean NOT NULL,
    output bytea,
    output_encoding text,
    output_schema text,
    failure jsonb,
    CONSTRAINT deliveries_delivery_positive CHECK ((delivery >= 1)),
    CONSTRAINT deliveries_done_is_final CHECK (((outcome <> 'DONE'::tenure.delivery_outcome) OR final))
)
PARTITION BY RANGE (run_id);

CREATE TABLE tenure.idempotency_keys (
    namespace_id integer NOT NULL,
    kind text NOT NULL,
    key text NOT NULL,
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    name text NOT NULL,
    input_hash bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE tenure.lanes (
    lane_id integer NOT NULL,
    namespace_id integer NOT NULL,
    queue text NOT NULL,
    name text NOT NULL,
    app_version text DEFAULT ''::text NOT NULL,
    lane_key text DEFAULT ''::text NOT NULL,
    suspect boolean DEFAULT false NOT NULL
);

ALTER TABLE tenure.lanes ALTER COLUMN lane_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.lanes_lane_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.leases (
    lease_id uuid DEFAULT uuidv7() NOT NULL,
    session_id uuid NOT NULL,
    granted_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    namespace_id integer NOT NULL,
    lane_id integer NOT NULL,
    remaining integer NOT NULL,
    secret bytea NOT NULL,
    run_ids uuid[] NOT NULL,
    task_ids uuid[] NOT NULL,
    seqs bigint[] NOT NULL,
    attempts integer[] NOT NULL,
    deliveries integer[] NOT NULL,
    ranks smallint[] NOT NULL,
    lost_counts smallint[] NOT NULL,
    total_bys timestamp with time zone[],
    started_task_ids uuid[],
    started_at timestamp with time zone[],
    details jsonb,
    deadline_at timestamp with time zone,
    alerted text[],
    CONSTRAINT leases_remaining_positive CHECK ((remaining > 0))
)
WITH (toast_tuple_target='256', fillfactor='50', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');
ALTER TABLE ONLY tenure.leases ALTER COLUMN run_ids SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN task_ids SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN seqs SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN attempts SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN deliveries SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN ranks SET STORAGE EXTERNAL;
ALTER TABLE ONLY tenure.leases ALTER COLUMN lost_counts SET STORAGE EXTERNAL;

CREATE TABLE tenure.namespaces (
    namespace_id integer NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT namespaces_name_form CHECK ((name ~ '^[a-z0-9_-]{1,100}$'::text))
);

ALTER TABLE tenure.namespaces ALTER COLUMN namespace_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.namespaces_namespace_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.queues (
    namespace_id integer NOT NULL,
    name text NOT NULL,
    paused_at timestamp with time zone
);

CREATE SEQUENCE tenure.ready_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE tenure.ready_tasks (
    lane_id integer NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) NOT NULL,
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    ready_at timestamp with time zone DEFAULT now() NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    delivery integer DEFAULT 1 NOT NULL,
    lost_count smallint DEFAULT 0 NOT NULL,
    rank smallint DEFAULT 0 NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
PARTITION BY HASH (lane_id);

CREATE TABLE tenure.ready_tasks_p0 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p1 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p2 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p3 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p4 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p5 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p6 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.ready_tasks_p7 (
    lane_id integer CONSTRAINT ready_tasks_lane_id_not_null NOT NULL,
    seq bigint DEFAULT nextval('tenure.ready_seq'::regclass) CONSTRAINT ready_tasks_seq_not_null NOT NULL,
    run_id uuid CONSTRAINT ready_tasks_run_id_not_null NOT NULL,
    task_id uuid CONSTRAINT ready_tasks_task_id_not_null NOT NULL,
    ready_at timestamp with time zone DEFAULT now() CONSTRAINT ready_tasks_ready_at_not_null NOT NULL,
    attempt integer DEFAULT 1 CONSTRAINT ready_tasks_attempt_not_null NOT NULL,
    delivery integer DEFAULT 1 CONSTRAINT ready_tasks_delivery_not_null NOT NULL,
    lost_count smallint DEFAULT 0 CONSTRAINT ready_tasks_lost_count_not_null NOT NULL,
    rank smallint DEFAULT 0 CONSTRAINT ready_tasks_rank_not_null NOT NULL,
    total_by timestamp with time zone,
    deadline_at timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.requests (
    namespace_id integer NOT NULL,
    request_id uuid NOT NULL,
    kind text NOT NULL,
    digest bytea NOT NULL,
    answer bytea NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tenure.restores (
    restore_id bigint NOT NULL,
    checked_at timestamp with time zone DEFAULT now() NOT NULL,
    checked_by text NOT NULL,
    data_until timestamp with time zone,
    void_until timestamp with time zone NOT NULL,
    session_count bigint DEFAULT 0 NOT NULL,
    lease_count bigint DEFAULT 0 NOT NULL,
    task_count bigint DEFAULT 0 NOT NULL,
    released_at timestamp with time zone,
    released_by text,
    CONSTRAINT restores_released_by_whom CHECK (((released_at IS NULL) = (released_by IS NULL)))
);

ALTER TABLE tenure.restores ALTER COLUMN restore_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.restores_restore_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.run_inbox (
    run_id uuid NOT NULL,
    inbox_id bigint NOT NULL,
    child_id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

ALTER TABLE tenure.run_inbox ALTER COLUMN inbox_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.run_inbox_inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.run_wait_sets (
    run_id uuid NOT NULL,
    set_number smallint NOT NULL,
    needed_count integer NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01');

CREATE TABLE tenure.run_waits (
    run_id uuid NOT NULL,
    child_id uuid NOT NULL,
    set_number smallint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

CREATE TABLE tenure.runs (
    run_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    namespace_id integer NOT NULL,
    status tenure.run_status DEFAULT 'OPEN'::tenure.run_status NOT NULL,
    blocked tenure.run_blocked,
    recovery_attempts smallint NOT NULL,
    name text NOT NULL,
    version text,
    parent_run_id uuid,
    root_run_id uuid NOT NULL,
    forked_from uuid,
    attributes jsonb,
    failure jsonb,
    CONSTRAINT runs_blocked_why CHECK (((status = 'BLOCKED'::tenure.run_status) = (blocked IS NOT NULL))),
    CONSTRAINT runs_recovery_attempts_range CHECK (((recovery_attempts >= 1) AND (recovery_attempts <= 1000)))
)
PARTITION BY RANGE (run_id);

CREATE TABLE tenure.schema_migrations (
    id text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    breaking boolean NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tenure.sessions (
    session_id uuid DEFAULT uuidv7() NOT NULL,
    namespace_id integer NOT NULL,
    worker text NOT NULL,
    secret_hash bytea NOT NULL,
    epoch integer DEFAULT 1 NOT NULL,
    handlers jsonb NOT NULL,
    slots jsonb NOT NULL,
    receiving boolean DEFAULT true NOT NULL,
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL,
    closed_at timestamp with time zone,
    api_key_id uuid
);

CREATE SEQUENCE tenure.step_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE tenure.steps (
    run_id uuid NOT NULL,
    step_id text NOT NULL,
    seq bigint DEFAULT nextval('tenure.step_seq'::regclass) NOT NULL,
    recorded_at timestamp with time zone DEFAULT now() NOT NULL,
    kind tenure.step_kind NOT NULL,
    name text NOT NULL,
    child_id uuid,
    wake_at timestamp with time zone,
    output bytea,
    output_encoding text,
    output_schema text,
    failure jsonb
)
PARTITION BY RANGE (run_id);

CREATE TABLE tenure.task_defs (
    namespace_id integer NOT NULL,
    name text NOT NULL,
    declared jsonb,
    app_version text DEFAULT ''::text NOT NULL,
    override jsonb,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tenure.task_policies (
    policy_id integer NOT NULL,
    body jsonb NOT NULL,
    digest bytea NOT NULL
);

ALTER TABLE tenure.task_policies ALTER COLUMN policy_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.task_policies_policy_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.tasks (
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    enqueued_at timestamp with time zone DEFAULT now() NOT NULL,
    namespace_id integer NOT NULL,
    lane_id integer NOT NULL,
    policy_id integer NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    iteration integer,
    input bytea NOT NULL,
    input_encoding text,
    input_schema text,
    ref text,
    key text,
    traceparent text,
    CONSTRAINT tasks_priority_range CHECK (((priority >= '-100'::integer) AND (priority <= 100)))
)
PARTITION BY RANGE (run_id);

CREATE TABLE tenure.timers (
    fire_at timestamp with time zone NOT NULL,
    timer_id bigint NOT NULL,
    run_id uuid NOT NULL,
    task_id uuid NOT NULL,
    namespace_id integer NOT NULL,
    lane_id integer NOT NULL,
    attempt integer NOT NULL,
    delivery integer NOT NULL,
    lost_count smallint NOT NULL,
    rank smallint NOT NULL,
    kind tenure.timer_kind NOT NULL,
    total_by timestamp with time zone,
    start_ms bigint
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_limit='2000');

ALTER TABLE tenure.timers ALTER COLUMN timer_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenure.timers_timer_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenure.workers (
    namespace_id integer NOT NULL,
    name text NOT NULL,
    sdk text DEFAULT ''::text NOT NULL,
    sdk_version text DEFAULT ''::text NOT NULL,
    app_version text DEFAULT ''::text NOT NULL,
    first_seen_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p0 FOR VALUES WITH (modulus 8, remainder 0);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p1 FOR VALUES WITH (modulus 8, remainder 1);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p2 FOR VALUES WITH (modulus 8, remainder 2);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p3 FOR VALUES WITH (modulus 8, remainder 3);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p4 FOR VALUES WITH (modulus 8, remainder 4);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p5 FOR VALUES WITH (modulus 8, remainder 5);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p6 FOR VALUES WITH (modulus 8, remainder 6);

ALTER TABLE ONLY tenure.ready_tasks ATTACH PARTITION tenure.ready_tasks_p7 FOR VALUES WITH (modulus 8, remainder 7);

ALTER TABLE ONLY tenure.api_keys
    ADD CONSTRAINT api_keys_hash_unique UNIQUE (hash);

ALTER TABLE ONLY tenure.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (api_key_id);

ALTER TABLE ONLY tenure.app_versions
    ADD CONSTRAINT app_versions_pkey PRIMARY KEY (namespace_id, queue, name, version);

ALTER TABLE ONLY tenure.audit_events
    ADD CONSTRAINT audit_events_pkey PRIMARY KEY (audit_event_id);

ALTER TABLE ONLY tenure.cancel_requests
    ADD CONSTRAINT cancel_requests_pkey PRIMARY KEY (run_id, task_id);

ALTER TABLE ONLY tenure.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (run_id, task_id);

ALTER TABLE ONLY tenure.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (run_id, task_id, delivery);

ALTER TABLE ONLY tenure.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (namespace_id, kind, key);

ALTER TABLE ONLY tenure.lanes
    ADD CONSTRAINT lanes_identity_unique UNIQUE (namespace_id, queue, name, app_version, lane_key, suspect);

ALTER TABLE ONLY tenure.lanes
    ADD CONSTRAINT lanes_pkey PRIMARY KEY (lane_id);

ALTER TABLE ONLY tenure.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (lease_id);

ALTER TABLE ONLY tenure.namespaces
    ADD CONSTRAINT namespaces_name_unique UNIQUE (name);

ALTER TABLE ONLY tenure.namespaces
    ADD CONSTRAINT namespaces_pkey PRIMARY KEY (namespace_id);

ALTER TABLE ONLY tenure.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (namespace_id, name);

ALTER TABLE ONLY tenure.ready_tasks
    ADD CONSTRAINT ready_tasks_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p0
    ADD CONSTRAINT ready_tasks_p0_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p1
    ADD CONSTRAINT ready_tasks_p1_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p2
    ADD CONSTRAINT ready_tasks_p2_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p3
    ADD CONSTRAINT ready_tasks_p3_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p4
    ADD CONSTRAINT ready_tasks_p4_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p5
    ADD CONSTRAINT ready_tasks_p5_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p6
    ADD CONSTRAINT ready_tasks_p6_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.ready_tasks_p7
    ADD CONSTRAINT ready_tasks_p7_pkey PRIMARY KEY (lane_id, rank, seq);

ALTER TABLE ONLY tenure.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (namespace_id, request_id);

ALTER TABLE ONLY tenure.restores
    ADD CONSTRAINT restores_pkey PRIMARY KEY (restore_id);

ALTER TABLE ONLY tenure.run_inbox
    ADD CONSTRAINT run_inbox_pkey PRIMARY KEY (run_id, inbox_id);

ALTER TABLE ONLY tenure.run_wait_sets
    ADD CONSTRAINT run_wait_sets_pkey PRIMARY KEY (run_id, set_number);

ALTER TABLE ONLY tenure.run_waits
    ADD CONSTRAINT run_waits_pkey PRIMARY KEY (run_id, child_id, set_number);

ALTER TABLE ONLY tenure.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY tenure.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tenure.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (session_id);

ALTER TABLE ONLY tenure.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (run_id, step_id);

ALTER TABLE ONLY tenure.task_defs
    ADD CONSTRAINT task_defs_pkey PRIMARY KEY (namespace_id, name);

ALTER TABLE ONLY tenure.task_policies
    ADD CONSTRAINT task_policies_digest_unique UNIQUE (digest);

ALTER TABLE ONLY tenure.task_policies
    ADD CONSTRAINT task_policies_pkey PRIMARY KEY (policy_id);

ALTER TABLE ONLY tenure.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (run_id, task_id);

ALTER TABLE ONLY tenure.timers
    ADD CONSTRAINT timers_pkey PRIMARY KEY (fire_at, timer_id);

ALTER TABLE ONLY tenure.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (namespace_id, name);

CREATE INDEX cancel_requests_deadline_idx ON tenure.cancel_requests USING btree (deadline_at);

CREATE INDEX dead_letters_listing_idx ON tenure.dead_letters USING btree (namespace_id, state, died_at DESC, task_id DESC);

CREATE INDEX deliveries_ended_otherwise_idx ON ONLY tenure.deliveries USING btree (run_id, task_id) WHERE (final AND (outcome = ANY (ARRAY['CANCELLED'::tenure.delivery_outcome, 'TIMED_OUT'::tenure.delivery_outcome])));

CREATE INDEX idempotency_keys_expires_idx ON tenure.idempotency_keys USING btree (expires_at);

CREATE INDEX leases_deadline_idx ON tenure.leases USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX leases_session_idx ON tenure.leases USING btree (session_id);

CREATE INDEX leases_task_idx ON tenure.leases USING gin (task_ids);

CREATE INDEX ready_tasks_deadline_idx ON ONLY tenure.ready_tasks USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p0_deadline_at_idx ON tenure.ready_tasks_p0 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_task_idx ON ONLY tenure.ready_tasks USING btree (task_id);

CREATE INDEX ready_tasks_p0_task_id_idx ON tenure.ready_tasks_p0 USING btree (task_id);

CREATE INDEX ready_tasks_p1_deadline_at_idx ON tenure.ready_tasks_p1 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p1_task_id_idx ON tenure.ready_tasks_p1 USING btree (task_id);

CREATE INDEX ready_tasks_p2_deadline_at_idx ON tenure.ready_tasks_p2 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p2_task_id_idx ON tenure.ready_tasks_p2 USING btree (task_id);

CREATE INDEX ready_tasks_p3_deadline_at_idx ON tenure.ready_tasks_p3 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p3_task_id_idx ON tenure.ready_tasks_p3 USING btree (task_id);

CREATE INDEX ready_tasks_p4_deadline_at_idx ON tenure.ready_tasks_p4 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p4_task_id_idx ON tenure.ready_tasks_p4 USING btree (task_id);

CREATE INDEX ready_tasks_p5_deadline_at_idx ON tenure.ready_tasks_p5 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p5_task_id_idx ON tenure.ready_tasks_p5 USING btree (task_id);

CREATE INDEX ready_tasks_p6_deadline_at_idx ON tenure.ready_tasks_p6 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p6_task_id_idx ON tenure.ready_tasks_p6 USING btree (task_id);

CREATE INDEX ready_tasks_p7_deadline_at_idx ON tenure.ready_tasks_p7 USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX ready_tasks_p7_task_id_idx ON tenure.ready_tasks_p7 USING btree (task_id);

CREATE INDEX requests_requested_idx ON tenure.requests USING btree (requested_at);

CREATE UNIQUE INDEX restores_held_unique ON tenure.restores USING btree (((released_at IS NULL))) WHERE (released_at IS NULL);

CREATE INDEX runs_attributes_idx ON ONLY tenure.runs USING gin (attributes jsonb_path_ops) WHERE (attributes IS NOT NULL);

CREATE INDEX runs_listing_idx ON ONLY tenure.runs USING btree (namespace_id, run_id);

CREATE INDEX runs_name_idx ON ONLY tenure.runs USING btree (namespace_id, name, run_id);

CREATE INDEX runs_parent_idx ON ONLY tenure.runs USING btree (parent_run_id, run_id) WHERE (parent_run_id IS NOT NULL);

CREATE INDEX runs_status_idx ON ONLY tenure.runs USING btree (namespace_id, status, run_id);

CREATE INDEX sessions_open_idx ON tenure.sessions USING btree (namespace_id, worker) WHERE (closed_at IS NULL);

CREATE INDEX sessions_seen_idx ON tenure.sessions USING btree (seen_at);

CREATE INDEX timers_task_idx ON tenure.timers USING btree (task_id);

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p0_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p0_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p0_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p1_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p1_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p1_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p2_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p2_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p2_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p3_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p3_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p3_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p4_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p4_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p4_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p5_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p5_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p5_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p6_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p6_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p6_task_id_idx;

ALTER INDEX tenure.ready_tasks_deadline_idx ATTACH PARTITION tenure.ready_tasks_p7_deadline_at_idx;

ALTER INDEX tenure.ready_tasks_pkey ATTACH PARTITION tenure.ready_tasks_p7_pkey;

ALTER INDEX tenure.ready_tasks_task_idx ATTACH PARTITION tenure.ready_tasks_p7_task_id_idx;

CREATE TRIGGER audit_events_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON tenure.audit_events FOR EACH STATEMENT EXECUTE FUNCTION tenure.audit_events_refuse();
