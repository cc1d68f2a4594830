DROP INDEX lockstep.task_scope_created;
