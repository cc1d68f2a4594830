-- The audit log is sealed: about once a second a sealer takes what was written
-- since the last seal, in the order of the ids, and chains and signs it.
--
-- Ids are given by a trigger, once the transaction has an id of its own. So an
-- id that is not committed yet belongs to a transaction that everybody can see
-- running: a sealer waits for those, and then no row can come behind a seal.
CREATE SEQUENCE lockstep.audit_id;
SELECT setval('lockstep.audit_id', coalesce(max(audit_id), 0) + 1, false) FROM lockstep.audit;
ALTER TABLE lockstep.audit ALTER COLUMN audit_id DROP IDENTITY;
ALTER SEQUENCE lockstep.audit_id OWNED BY lockstep.audit.audit_id;

CREATE TABLE lockstep.audit_seal (
  seal_id   bigint  PRIMARY KEY CHECK (seal_id >= 1),
  -- Every id of the range is sealed, the ones that no row has too.
  first_id  bigint  NOT NULL UNIQUE CHECK (first_id >= 1),
  last_id   bigint  NOT NULL UNIQUE CHECK (last_id >= first_id),
  row_count integer NOT NULL CHECK (row_count >= 1),
  previous  bytea   NOT NULL CHECK (octet_length(previous) = 32),
  hash      bytea   NOT NULL CHECK (octet_length(hash) = 32),
  -- The signed head, an envelope; served as it is.
  head      bytea   NOT NULL,
  sealed_at timestamptz NOT NULL
);

-- The sealer's claim, see docs/protocol/claims.md. One row.
CREATE TABLE lockstep.audit_sealer (
  sealer_id   uuid PRIMARY KEY CHECK (sealer_id = '00000000-0000-4000-8000-000000000001'),
  claim_token uuid,
  claimed_by  text,
  claimed_at  timestamptz,
  lease_until timestamptz,
  CHECK ((claim_token IS NULL) = (claimed_by IS NULL)),
  CHECK ((claim_token IS NULL) = (claimed_at IS NULL)),
  CHECK ((claim_token IS NULL) = (lease_until IS NULL))
);
INSERT INTO lockstep.audit_sealer VALUES ('00000000-0000-4000-8000-000000000001');

-- The definer's rights: who may write a row need not touch the sequence.
CREATE FUNCTION lockstep.number_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_current_xact_id();
  NEW.audit_id := nextval('lockstep.audit_id');
  NEW.at := transaction_timestamp();
  IF NEW.audit_id <= (SELECT max(last_id) FROM lockstep.audit_seal) THEN
    RAISE EXCEPTION 'audit row % would lie behind a seal: the sequence was put back', NEW.audit_id
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER numbered BEFORE INSERT ON lockstep.audit FOR EACH ROW EXECUTE FUNCTION lockstep.number_audit();

CREATE FUNCTION lockstep.chain_audit_seal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  last_seal bigint; sealed bigint; head_hash bytea;
BEGIN
  SELECT seal_id, last_id, hash INTO last_seal, sealed, head_hash FROM lockstep.audit_seal ORDER BY seal_id DESC LIMIT 1;
  IF NEW.seal_id <> coalesce(last_seal, 0) + 1 OR NEW.first_id <> coalesce(sealed, 0) + 1
    OR NEW.previous <> coalesce(head_hash, decode(repeat('00', 32), 'hex')) THEN
    RAISE EXCEPTION 'audit seal % does not follow seal %', NEW.seal_id, coalesce(last_seal, 0)
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chained BEFORE INSERT ON lockstep.audit_seal FOR EACH ROW EXECUTE FUNCTION lockstep.chain_audit_seal();

-- Insert only, without exception: no retention touches these two.
CREATE FUNCTION lockstep.refuse_rewrite() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% on %.% is refused: rows are only added to it', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$;
DROP TRIGGER frozen ON lockstep.audit;
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.audit FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_rewrite();
CREATE TRIGGER whole BEFORE TRUNCATE ON lockstep.audit FOR EACH STATEMENT EXECUTE FUNCTION lockstep.refuse_rewrite();
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.audit_seal FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_rewrite();
CREATE TRIGGER whole BEFORE TRUNCATE ON lockstep.audit_seal FOR EACH STATEMENT EXECUTE FUNCTION lockstep.refuse_rewrite();

CREATE INDEX audit_object ON lockstep.audit (object, audit_id);
CREATE INDEX audit_at ON lockstep.audit (at, audit_id);
-- One row a principal, code and minute, however many processes refuse.
CREATE UNIQUE INDEX audit_refusal ON lockstep.audit (actor, decision, date_trunc('minute', at AT TIME ZONE 'UTC')) WHERE action = 'refuse';

-- The trace that the newest instruction came in, as a W3C traceparent; '' for none.
ALTER TABLE lockstep.work ADD COLUMN trace_context text NOT NULL DEFAULT '' CHECK (octet_length(trace_context) <= 64);

-- What the metrics read: counts by state.
CREATE INDEX work_state ON lockstep.work (state);
