ALTER TABLE lockstep.refresh_task DROP CONSTRAINT running_is_held;
DROP TABLE lockstep.refresh_event, lockstep.refresh_scope_guard, lockstep.refresh_scope, lockstep.refresh_progress, lockstep.refresh_task;
