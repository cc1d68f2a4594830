CREATE SCHEMA IF NOT EXISTS lockstep;

-- One row: numbers an operator raises, and the identity of the databases whose
-- change freezes absence proofs.
CREATE TABLE lockstep.center (
  singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  center_epoch  bigint NOT NULL DEFAULT 1 CHECK (center_epoch >= 1),
  source_system text,
  store_system  text
);
INSERT INTO lockstep.center DEFAULT VALUES;

-- Which tenants a consumer serves; a fact of its own, registered by an operator.
CREATE TABLE lockstep.consumer_tenant (
  consumer   text   NOT NULL CHECK (consumer <> ''),
  tenant_id  bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, tenant_id)
);

CREATE TABLE lockstep.consumer_grant (
  consumer          text    NOT NULL CHECK (consumer <> ''),
  tenant_id         bigint  NOT NULL,
  collection_id     text    NOT NULL CHECK (collection_id <> ''),
  enabled           boolean NOT NULL,
  read_allowed      boolean NOT NULL,
  subscribe_allowed boolean NOT NULL,
  grant_epoch       bigint  NOT NULL DEFAULT 1 CHECK (grant_epoch >= 1),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, tenant_id, collection_id)
);

CREATE TABLE lockstep.task (
  task_id          uuid    PRIMARY KEY,
  consumer         text    NOT NULL,
  tenant_id        bigint  NOT NULL,
  collection_id    text    NOT NULL,
  scope            text    NOT NULL CHECK (scope IN ('COLLECTION', 'RECORD')),
  -- The record of a RECORD task as 32 lower-case hex digits; '' otherwise.
  record_key       text    NOT NULL DEFAULT '',
  mode             text    NOT NULL CHECK (mode IN ('REPAIR', 'DRY_RUN')),
  state            text    NOT NULL CHECK (state IN ('QUEUED', 'DISPATCHED', 'RUNNING', 'COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED')),
  code             text    NOT NULL DEFAULT '',
  reason           text    NOT NULL DEFAULT '',
  attempt          integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
  grant_epoch      bigint  NOT NULL,
  center_epoch     bigint  NOT NULL,
  breaker_override boolean NOT NULL DEFAULT false,
  override_reason  text    NOT NULL DEFAULT '',
  created_by       text    NOT NULL,

  manifest_state   text    NOT NULL DEFAULT 'PENDING' CHECK (manifest_state IN ('PENDING', 'COMPLETE', 'FAILED', 'PURGED')),
  manifest_id      uuid,
  manifest_root    bytea,
  row_count        bigint,
  page_rows        integer,
  page_count       integer,
  window_start     timestamptz,
  -- The signed header envelope, serialised; served as it is.
  header           bytea,
  materialise_tries integer NOT NULL DEFAULT 0,

  -- The claim of a materialiser or a dispatcher, see docs/protocol/claims.md.
  -- DISPATCHED and RUNNING have a lease and no token: the consumer works.
  claim_token      uuid,
  claimed_by       text,
  claimed_at       timestamptz,
  lease_until      timestamptz,
  slot             integer,
  due_at           timestamptz NOT NULL DEFAULT now(),
  dispatched_at    timestamptz,
  -- When DISPATCHED began without a run since, for dispatch_give_up.
  waiting_since    timestamptz,
  waiting_code     text NOT NULL DEFAULT '',

  -- The newest progress report of the current attempt, serialised Report payload.
  progress         bytea,
  progress_at      timestamptz,

  business_day     date,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now(),
  ended_at         timestamptz,
  purged_at        timestamptz,

  CHECK ((scope = 'RECORD') = (record_key <> '')),
  CHECK ((claim_token IS NULL) = (claimed_by IS NULL)),
  CHECK ((claim_token IS NULL) = (claimed_at IS NULL)),
  -- A claimed row has a lease; so have DISPATCHED and RUNNING; nothing else has.
  CHECK ((lease_until IS NOT NULL) = (claim_token IS NOT NULL OR state IN ('DISPATCHED', 'RUNNING'))),
  CHECK (claim_token IS NULL OR state = 'QUEUED'),
  CHECK (slot IS NULL OR state IN ('QUEUED', 'DISPATCHED', 'RUNNING')),
  CHECK (state NOT IN ('DISPATCHED', 'RUNNING') OR slot IS NOT NULL),
  CHECK ((ended_at IS NOT NULL) = (state IN ('COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED'))),
  CHECK (manifest_state <> 'COMPLETE' OR (manifest_id IS NOT NULL AND manifest_root IS NOT NULL AND row_count IS NOT NULL AND page_rows IS NOT NULL AND page_count IS NOT NULL AND window_start IS NOT NULL AND header IS NOT NULL)),
  CHECK (state NOT IN ('DISPATCHED', 'RUNNING', 'COMPLETED', 'PARTIAL') OR manifest_state IN ('COMPLETE', 'PURGED')),
  CHECK (NOT breaker_override OR override_reason <> '')
);

-- No stacked tasks.
CREATE UNIQUE INDEX task_open ON lockstep.task (consumer, tenant_id, collection_id, scope, record_key)
  WHERE state IN ('QUEUED', 'DISPATCHED', 'RUNNING');
-- In flight: slot 0 is reserved for RECORD tasks, 1..n for the others.
CREATE UNIQUE INDEX task_slot ON lockstep.task (consumer, slot) WHERE slot IS NOT NULL;
-- Once per business day and scope.
CREATE UNIQUE INDEX task_business_day ON lockstep.task (business_day, consumer, tenant_id, collection_id)
  WHERE business_day IS NOT NULL;
-- At most one collection task of a consumer is materialised ahead, so that
-- manifests are fresh when they are used.
CREATE UNIQUE INDEX task_ahead ON lockstep.task (consumer)
  WHERE scope = 'COLLECTION' AND state = 'QUEUED' AND attempt = 0 AND (manifest_state = 'COMPLETE' OR claim_token IS NOT NULL);
-- What materialisers, dispatchers and the sweep read.
CREATE INDEX task_due ON lockstep.task (due_at, task_id) WHERE state = 'QUEUED';
CREATE INDEX task_lease ON lockstep.task (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX task_scope_ended ON lockstep.task (consumer, tenant_id, collection_id, ended_at);
CREATE INDEX task_purge ON lockstep.task (ended_at) WHERE ended_at IS NOT NULL AND manifest_state = 'COMPLETE';
CREATE INDEX task_created ON lockstep.task (created_at DESC, task_id DESC);

-- The pages of frozen manifests. Bulk: no foreign key to the queue.
CREATE TABLE lockstep.manifest_page (
  tenant_id   bigint  NOT NULL,
  manifest_id uuid    NOT NULL,
  page        integer NOT NULL CHECK (page >= 0),
  row_count   integer NOT NULL CHECK (row_count > 0),
  last_key    bytea   NOT NULL,
  root        bytea   NOT NULL CHECK (octet_length(root) = 32),
  body        bytea   NOT NULL,
  PRIMARY KEY (tenant_id, manifest_id, page)
);
CREATE INDEX manifest_page_key ON lockstep.manifest_page (tenant_id, manifest_id, last_key);
ALTER TABLE lockstep.manifest_page ALTER COLUMN body SET STORAGE EXTERNAL;

-- Sets being written or adopted; what no task adopted is swept.
CREATE TABLE lockstep.manifest (
  manifest_id uuid PRIMARY KEY,
  tenant_id   bigint NOT NULL,
  task_id     uuid   NOT NULL,
  adopted     boolean NOT NULL DEFAULT false,
  created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX manifest_abandoned ON lockstep.manifest (created_at) WHERE NOT adopted;

-- Frozen rows are never changed. Retention and the sweep of abandoned sets say
-- so in their own transaction; nobody else deletes.
CREATE FUNCTION lockstep.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('lockstep.retention', true) = 'on' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% on %.% is refused: its rows are frozen', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.manifest_page
  FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_change();

CREATE TABLE lockstep.task_result (
  task_id     uuid    NOT NULL,
  attempt     integer NOT NULL,
  state       text    NOT NULL CHECK (state IN ('COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED')),
  code        text    NOT NULL DEFAULT '',
  -- The signed report envelope, serialised, as it came.
  report      bytea   NOT NULL,
  received_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (task_id, attempt)
);
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.task_result
  FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_change();

-- One row a scheduled run; its tasks are made in the same transaction.
CREATE TABLE lockstep.schedule_run (
  business_day date PRIMARY KEY,
  started_at   timestamptz NOT NULL DEFAULT now(),
  finished_at  timestamptz,
  created      integer NOT NULL DEFAULT 0,
  skipped      integer NOT NULL DEFAULT 0
);

-- The dispatch attempts of a task: when, and how each ended.
CREATE TABLE lockstep.task_event (
  event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id  uuid NOT NULL,
  at       timestamptz NOT NULL DEFAULT now(),
  attempt  integer NOT NULL,
  event    text NOT NULL,
  state    text NOT NULL,
  code     text NOT NULL DEFAULT ''
);
CREATE INDEX task_event_task ON lockstep.task_event (task_id, event_id);

CREATE TABLE lockstep.audit (
  audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  actor    text NOT NULL,
  action   text NOT NULL,
  object   text NOT NULL,
  decision text NOT NULL,
  reason   text NOT NULL DEFAULT ''
);
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.audit
  FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_change();
