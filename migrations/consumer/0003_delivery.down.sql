DROP INDEX lockstep.outcome_quarantined;
ALTER TABLE lockstep.outcome DROP COLUMN reopened_at;
DROP TABLE lockstep.delivery_receipt;
