-- What a list of the collections reads: the newest work of each, and the newest
-- that proved the whole of it equal. Neither walks through all there ever was.
CREATE INDEX work_collection ON lockstep.work (tenant_id, collection_id, created_at DESC, task_id DESC);
CREATE INDEX work_proven ON lockstep.work (tenant_id, collection_id, ended_at DESC)
  WHERE scope = 'COLLECTION' AND state = 'COMPLETED';
