DROP INDEX lockstep.work_proven;
DROP INDEX lockstep.work_collection;
