DROP TABLE lockstep.audit, lockstep.high_water, lockstep.outcome, lockstep.work;
DROP FUNCTION lockstep.refuse_change();
DROP SCHEMA lockstep;
