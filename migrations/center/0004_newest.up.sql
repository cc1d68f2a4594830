-- The newest task of a scope, for the operators' list of collections, and a
-- scope's tasks, newest first.
CREATE INDEX task_scope_created ON lockstep.task (consumer, tenant_id, collection_id, created_at DESC, task_id DESC);
