DROP INDEX lockstep.outcome_op;
CREATE INDEX outcome_op ON lockstep.outcome (tenant_id, task_id, op_id);
