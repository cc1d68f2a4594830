-- The newest delivered word about each record, and what became of it. A repair
-- has its own ledger; neither writes the other's.
CREATE TABLE lockstep.delivery_receipt (
  tenant_id     bigint NOT NULL,
  collection_id text   NOT NULL,
  record_key    bytea  NOT NULL,
  outcome       text   NOT NULL CHECK (outcome IN ('APPLIED', 'DUPLICATE', 'OLDER', 'CONFLICT', 'RETIRED')),
  event_id      text   NOT NULL,
  center_epoch  bigint NOT NULL,
  revision      bigint NOT NULL CHECK (revision >= 1),
  content_hash  bytea  NOT NULL CHECK (octet_length(content_hash) = 32),
  deleted       boolean NOT NULL,
  received_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, collection_id, record_key)
);

-- An operator asked for another try: the row leaves the list of quarantined
-- records until it is found again. The outcome stays what it was, so that the
-- ledger keeps adding up to the report.
ALTER TABLE lockstep.outcome ADD COLUMN reopened_at timestamptz;
CREATE INDEX outcome_quarantined ON lockstep.outcome (tenant_id, record_key, task_id)
  WHERE outcome = 'QUARANTINED' AND reopened_at IS NULL;
