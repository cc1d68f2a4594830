-- Without statistics, as a ledger is while its first rows are written, an index
-- that begins as the primary key does looks as good for finding one key, and
-- reads the whole task for it. An op id is unique by itself.
DROP INDEX lockstep.outcome_op;
CREATE INDEX outcome_op ON lockstep.outcome (op_id);
