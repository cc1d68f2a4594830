-- Requests that became tasks. A submission touches this table only, so that a
-- caller's transaction never waits for a refresh.
CREATE TABLE lockstep.refresh_task (
  task_id            uuid    PRIMARY KEY,
  projection         text    NOT NULL CHECK (projection <> ''),
  -- SHA-256 of projection and business key, hex.
  task_code          text    NOT NULL UNIQUE CHECK (task_code ~ '^[0-9a-f]{64}$'),
  business_key       text    NOT NULL CHECK (business_key <> '' AND octet_length(business_key) <= 1024),
  custom_key         boolean NOT NULL,
  mode               text    NOT NULL CHECK (mode IN ('REVIEW_CREATE', 'EXISTING_ONLY')),
  -- The newest accepted payload, and the hash of what the key must always mean.
  payload            json    NOT NULL,
  range_hash         bytea   NOT NULL CHECK (octet_length(range_hash) = 32),
  requested_by       text    NOT NULL DEFAULT '',
  request_generation bigint  NOT NULL DEFAULT 1 CHECK (request_generation >= 1),
  state              text    NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'RUNNING', 'SUCCESS', 'FAILED', 'CANCELLED')),
  retry_count        integer NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
  max_retry          integer NOT NULL CHECK (max_retry >= 1),
  due_at             timestamptz NOT NULL DEFAULT now(),
  code               text    NOT NULL DEFAULT '',
  error              text    NOT NULL DEFAULT '' CHECK (char_length(error) <= 1000),
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  -- Set while the task is RUNNING: what ties it to a held progress row, below.
  running_task       uuid GENERATED ALWAYS AS (CASE WHEN state = 'RUNNING' THEN task_id END) STORED UNIQUE,
  CHECK (custom_key = false OR mode = 'EXISTING_ONLY'),
  CHECK (state <> 'FAILED' OR code <> '')
);
CREATE INDEX refresh_task_due ON lockstep.refresh_task (due_at, task_id)
  WHERE state IN ('PENDING', 'FAILED') AND retry_count < max_retry;
CREATE INDEX refresh_task_created ON lockstep.refresh_task (created_at DESC, task_id DESC);
CREATE INDEX refresh_task_key ON lockstep.refresh_task (business_key);

-- The worker's side of a task: the frozen generation, and who holds it.
CREATE TABLE lockstep.refresh_progress (
  task_id            uuid   PRIMARY KEY REFERENCES lockstep.refresh_task,
  running_generation bigint NOT NULL CHECK (running_generation >= 1),
  -- Frozen when the generation was first claimed.
  payload            json   NOT NULL,
  -- The generation's scopes stand in refresh_scope.
  resolved           boolean NOT NULL DEFAULT false,
  attempt            bigint NOT NULL DEFAULT 0,
  -- Claims in a row that ended by the lease, without a conclusion.
  lapses             integer NOT NULL DEFAULT 0,
  claim_token        uuid,
  claimed_by         text,
  claimed_at         timestamptz,
  lease_until        timestamptz,
  held_task          uuid GENERATED ALWAYS AS (CASE WHEN claim_token IS NOT NULL THEN task_id END) STORED UNIQUE,
  CHECK ((claim_token IS NULL) = (claimed_by IS NULL)),
  CHECK ((claim_token IS NULL) = (claimed_at IS NULL)),
  CHECK ((claim_token IS NULL) = (lease_until IS NULL))
);
CREATE INDEX refresh_progress_lease ON lockstep.refresh_progress (lease_until) WHERE claim_token IS NOT NULL;

-- RUNNING and held are the same thing, in both directions: no task runs for ever
-- without a lease, no token outlives its run. Looked at when a transaction commits.
ALTER TABLE lockstep.refresh_task ADD CONSTRAINT running_is_held
  FOREIGN KEY (running_task) REFERENCES lockstep.refresh_progress (held_task) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE lockstep.refresh_progress ADD CONSTRAINT held_is_running
  FOREIGN KEY (held_task) REFERENCES lockstep.refresh_task (running_task) DEFERRABLE INITIALLY DEFERRED;

-- The scopes of the running generation, in their order. They are the progress.
CREATE TABLE lockstep.refresh_scope (
  task_id      uuid    NOT NULL REFERENCES lockstep.refresh_task,
  generation   bigint  NOT NULL CHECK (generation >= 1),
  scope_id     bigint  NOT NULL,
  month        integer NOT NULL CHECK (month BETWEEN 100001 AND 999912 AND month % 100 BETWEEN 1 AND 12),
  position     bigint  NOT NULL CHECK (position >= 1),
  state        text    NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'DONE', 'FAILED')),
  tries        integer NOT NULL DEFAULT 0,
  code         text    NOT NULL DEFAULT '',
  error        text    NOT NULL DEFAULT '' CHECK (char_length(error) <= 1000),
  differences  bigint  NOT NULL DEFAULT 0,
  created      bigint  NOT NULL DEFAULT 0,
  updated      bigint  NOT NULL DEFAULT 0,
  unchanged    bigint  NOT NULL DEFAULT 0,
  missed       bigint  NOT NULL DEFAULT 0,
  late_skipped bigint  NOT NULL DEFAULT 0,
  warnings     bigint  NOT NULL DEFAULT 0,
  -- The first rows that had nothing to update; missed counts them all.
  missed_ids   bigint[] NOT NULL DEFAULT '{}' CHECK (cardinality(missed_ids) <= 100),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (task_id, generation, scope_id, month),
  CHECK (state <> 'FAILED' OR code <> '')
);
CREATE INDEX refresh_scope_order ON lockstep.refresh_scope (task_id, generation, position);
-- What a page takes.
CREATE INDEX refresh_scope_open ON lockstep.refresh_scope (task_id, generation, position) WHERE state = 'PENDING';

-- Who may write a scope's rows: one row "projection:id:yyyyMM", locked for the
-- scope's transaction whatever task it belongs to.
CREATE TABLE lockstep.refresh_scope_guard (
  guard_key text PRIMARY KEY
);

-- Source events that were already accepted.
CREATE TABLE lockstep.refresh_event (
  task_id         uuid NOT NULL REFERENCES lockstep.refresh_task,
  source_event_id text NOT NULL CHECK (source_event_id <> '' AND octet_length(source_event_id) <= 256),
  generation      bigint NOT NULL,
  accepted_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (task_id, source_event_id)
);
