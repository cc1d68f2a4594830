CREATE SCHEMA IF NOT EXISTS lockstep;

-- Accepted instructions and how far each has come.
CREATE TABLE lockstep.work (
  task_id          uuid    PRIMARY KEY,
  source           text    NOT NULL,
  tenant_id        bigint  NOT NULL,
  collection_id    text    NOT NULL,
  scope            text    NOT NULL CHECK (scope IN ('COLLECTION', 'RECORD')),
  record_key       text    NOT NULL DEFAULT '',
  mode             text    NOT NULL CHECK (mode IN ('REPAIR', 'DRY_RUN')),
  state            text    NOT NULL CHECK (state IN ('QUEUED', 'RUNNING', 'REPORTING', 'PARKED', 'COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED')),
  code             text    NOT NULL DEFAULT '',
  -- The attempt it works and reports under; the newest accepted instruction's.
  attempt          integer NOT NULL CHECK (attempt >= 1),
  wanted_attempt   integer NOT NULL,
  grant_epoch      bigint  NOT NULL,
  center_epoch     bigint  NOT NULL,
  window_start     timestamptz NOT NULL,
  manifest_id      uuid    NOT NULL,
  manifest_root    bytea   NOT NULL CHECK (octet_length(manifest_root) = 32),
  row_count        bigint  NOT NULL,
  breaker_override boolean NOT NULL DEFAULT false,
  -- The newest accepted instruction envelope, serialised.
  instruction      bytea   NOT NULL,

  -- Checkpoint: pages [0, next_page) are done, up to and including cursor_key.
  next_page        integer NOT NULL DEFAULT 0,
  cursor_key       bytea,
  center_scanned   bigint  NOT NULL DEFAULT 0,
  local_scanned    bigint  NOT NULL DEFAULT 0,
  center_complete  boolean NOT NULL DEFAULT false,
  local_complete   boolean NOT NULL DEFAULT false,
  fetched          bigint  NOT NULL DEFAULT 0,
  wire_bytes       bigint  NOT NULL DEFAULT 0,
  resumed          integer NOT NULL DEFAULT 0,
  deferred_code    text    NOT NULL DEFAULT '',
  retire_code      text    NOT NULL DEFAULT '',
  verified         text    NOT NULL DEFAULT 'HASHES' CHECK (verified IN ('HASHES', 'CONTENT')),

  -- REPORTING: the frozen, signed report.
  report           bytea,
  report_state     text,
  report_attempt   integer,

  paused           boolean NOT NULL DEFAULT false,
  retry_count      integer NOT NULL DEFAULT 0,
  tries            integer NOT NULL DEFAULT 0,
  due_at           timestamptz NOT NULL DEFAULT now(),
  waiting_reported_at timestamptz,
  claim_token      uuid,
  claimed_by       text,
  claimed_at       timestamptz,
  lease_until      timestamptz,

  created_at       timestamptz NOT NULL DEFAULT now(),
  started_at       timestamptz,
  updated_at       timestamptz NOT NULL DEFAULT now(),
  ended_at         timestamptz,
  purged_at        timestamptz,

  CHECK (wanted_attempt >= attempt),
  CHECK ((claim_token IS NULL) = (claimed_by IS NULL)),
  CHECK ((claim_token IS NULL) = (claimed_at IS NULL)),
  CHECK ((claim_token IS NULL) = (lease_until IS NULL)),
  -- REPORTING is claimed while the report is being sent.
  CHECK (claim_token IS NULL OR state IN ('RUNNING', 'REPORTING')),
  CHECK (state <> 'RUNNING' OR claim_token IS NOT NULL),
  CHECK (state <> 'REPORTING' OR (report IS NOT NULL AND report_state IS NOT NULL)),
  CHECK ((ended_at IS NOT NULL) = (state IN ('COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED')))
);
CREATE INDEX work_due ON lockstep.work (due_at, task_id) WHERE state IN ('QUEUED', 'REPORTING', 'RUNNING');
CREATE INDEX work_created ON lockstep.work (created_at DESC, task_id DESC);

-- One row a difference. The class first found stays; the outcome is the latest.
CREATE TABLE lockstep.outcome (
  tenant_id       bigint NOT NULL,
  task_id         uuid   NOT NULL,
  record_key      bytea  NOT NULL,
  class           text   NOT NULL CHECK (class IN ('REVISION_ZERO', 'MISSING', 'EXTRA_ROW', 'LOCAL_AHEAD', 'TOMBSTONE', 'STALE', 'HASH_CONFLICT', 'QUARANTINED')),
  outcome         text   NOT NULL CHECK (outcome IN ('REPAIRED', 'SETTLED', 'RETIRED', 'REPORTED', 'DEFERRED', 'EXHAUSTED', 'QUARANTINED')),
  code            text   NOT NULL DEFAULT '',
  center_revision bigint,
  center_hash     bytea,
  center_deleted  boolean,
  local_revision  bigint,
  local_hash      bytea,
  local_deleted   boolean,
  -- The triple an effect wrote: a row met again holding it is skipped.
  wrote_revision  bigint,
  wrote_hash      bytea,
  wrote_deleted   boolean,
  evidence_id     text   NOT NULL DEFAULT '',
  -- The signed word the effect rests on, serialised, for the auditor.
  evidence        bytea,
  -- The transaction's own id, to read back whether it committed.
  op_id           uuid   NOT NULL,
  found_at        timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, task_id, record_key)
);
CREATE INDEX outcome_op ON lockstep.outcome (tenant_id, task_id, op_id);
CREATE INDEX outcome_candidates ON lockstep.outcome (tenant_id, task_id, record_key)
  WHERE class = 'EXTRA_ROW' AND outcome = 'REPORTED';

-- The highest (center epoch, revision) a verified document stated for a record,
-- and whether the record was retired at it. Binds repair and ordinary delivery.
CREATE TABLE lockstep.high_water (
  tenant_id     bigint NOT NULL,
  collection_id text   NOT NULL,
  record_key    bytea  NOT NULL,
  center_epoch  bigint NOT NULL,
  revision      bigint NOT NULL,
  retired       boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_id, collection_id, record_key)
);

CREATE TABLE lockstep.audit (
  audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  actor    text NOT NULL,
  action   text NOT NULL,
  object   text NOT NULL,
  decision text NOT NULL,
  reason   text NOT NULL DEFAULT ''
);
CREATE FUNCTION lockstep.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% on %.% is refused: its rows are frozen', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.audit
  FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_change();
