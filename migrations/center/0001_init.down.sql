DROP TABLE lockstep.audit, lockstep.task_event, lockstep.schedule_run, lockstep.task_result,
  lockstep.manifest_page, lockstep.manifest, lockstep.task, lockstep.consumer_grant,
  lockstep.consumer_tenant, lockstep.center;
DROP FUNCTION lockstep.refuse_change();
DROP SCHEMA lockstep;
