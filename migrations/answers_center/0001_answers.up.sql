-- The example system of record: forms and the answers given to them.
CREATE SCHEMA IF NOT EXISTS answers;

CREATE TABLE answers.form (
  form_id    text PRIMARY KEY,
  tenant_id  bigint NOT NULL,
  title      text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE answers.answer (
  tenant_id  bigint  NOT NULL,
  answer_id  uuid    NOT NULL,
  form_id    text    NOT NULL,
  -- The schema version the answer is pinned to.
  version    integer NOT NULL,
  seq_no     bigint  NOT NULL,
  -- Rows from before revisions were kept have 0.
  revision   bigint  NOT NULL CHECK (revision >= 0),
  deleted    boolean NOT NULL DEFAULT false,
  "values"   jsonb,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, answer_id)
);
-- Key order within a collection, for the manifest.
CREATE INDEX answer_collection ON answers.answer (tenant_id, form_id, answer_id);
-- Whether a key lives under another tenant or form.
CREATE INDEX answer_key ON answers.answer (answer_id);
