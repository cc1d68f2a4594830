-- The example host application: its projection of the answers, with columns of
-- its own beside the snapshot columns.
CREATE SCHEMA IF NOT EXISTS hall;

CREATE TABLE hall.answer_projection (
  tenant_id          bigint  NOT NULL,
  answer_id          uuid    NOT NULL,
  form_id            text    NOT NULL,
  -- Snapshot columns.
  form_version       bigint  NOT NULL DEFAULT 0,
  seq_no             bigint  NOT NULL DEFAULT 0,
  revision           bigint  NOT NULL,
  content_hash       bytea   NOT NULL CHECK (octet_length(content_hash) = 32),
  deleted            boolean NOT NULL DEFAULT false,
  "values"           jsonb,
  projection_version bigint  NOT NULL DEFAULT 1,
  created_at         timestamptz DEFAULT now(),
  -- Soft retirement and repair evidence.
  retired_at         timestamptz,
  retire_hold        boolean NOT NULL DEFAULT false,
  last_event_id      text,
  conflict_detail    text,
  proof_id           text,
  -- The host's own extension columns: never touched by a repair.
  biz_ext            jsonb,
  apply_id           text,
  flow_id            text,
  link_state         text,
  PRIMARY KEY (tenant_id, answer_id),
  -- The host stores no answer above 64 KiB.
  CONSTRAINT answer_size CHECK (octet_length("values"::text) <= 65536)
);
-- The local image in key order, answered from the index alone.
CREATE INDEX answer_projection_image ON hall.answer_projection (tenant_id, form_id, answer_id)
  INCLUDE (revision, content_hash, deleted) WHERE retired_at IS NULL;
-- Whether a key is held under another tenant or form.
CREATE INDEX answer_projection_key ON hall.answer_projection (answer_id);
