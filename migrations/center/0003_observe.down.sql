DROP INDEX lockstep.task_proven, lockstep.task_state;
ALTER TABLE lockstep.task DROP COLUMN trace_context;
DROP INDEX lockstep.audit_refusal, lockstep.audit_at, lockstep.audit_object;
DROP TRIGGER whole ON lockstep.audit;
DROP TRIGGER numbered ON lockstep.audit;
DROP TRIGGER frozen ON lockstep.audit;
CREATE TRIGGER frozen BEFORE UPDATE OR DELETE ON lockstep.audit
  FOR EACH ROW EXECUTE FUNCTION lockstep.refuse_change();
DROP TABLE lockstep.audit_seal, lockstep.audit_sealer;
DROP FUNCTION lockstep.number_audit, lockstep.chain_audit_seal, lockstep.refuse_rewrite;
ALTER TABLE lockstep.audit ALTER COLUMN audit_id ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('lockstep.audit', 'audit_id'), coalesce(max(audit_id), 0) + 1, false) FROM lockstep.audit;
DROP SEQUENCE lockstep.audit_id;
