-- Which answers changed, written by the transactions that change them. xid is
-- the transaction's own number: a reader that takes rows in (xid, id) order and
-- stays below the oldest transaction still running misses no late commit.
CREATE TABLE answers.answer_outbox (
  id        bigserial PRIMARY KEY,
  xid       xid8   NOT NULL DEFAULT pg_current_xact_id(),
  tenant_id bigint NOT NULL,
  form_id   text   NOT NULL,
  answer_id uuid   NOT NULL
);
CREATE INDEX answer_outbox_order ON answers.answer_outbox (xid, id);

-- Once a statement, not once a row: loading a million answers stays one insert.
-- An answer that moves to another form is a change under both. A deleted row
-- leaves nothing to send; reconciliation retires it.
CREATE FUNCTION answers.note_answers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO answers.answer_outbox (tenant_id, form_id, answer_id)
    SELECT tenant_id, form_id, answer_id FROM new_rows;
  ELSE
    INSERT INTO answers.answer_outbox (tenant_id, form_id, answer_id)
    SELECT tenant_id, form_id, answer_id FROM new_rows
    UNION SELECT tenant_id, form_id, answer_id FROM old_rows;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_inserted AFTER INSERT ON answers.answer
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION answers.note_answers();
CREATE TRIGGER note_updated AFTER UPDATE ON answers.answer
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION answers.note_answers();
