// Package failpoint names the places where a test kills the process, and kills
// or stops it there. Without the build tag "failpoints" nothing of it is in the
// binary.
//
// It never does anything but send the own process SIGKILL or SIGSTOP: a fault
// that the process could notice would be another fault.
package failpoint

import "slices"

// Name is a place in the code, "before" or "after" the commit it is about.
type Name string

// The places, by the service they are in.
const (
	CenterCreateBeforeCommit      Name = "center.create.before_commit"
	CenterCreateAfterCommit       Name = "center.create.after_commit"
	CenterMaterialiseBeforeCommit Name = "center.materialise.before_commit"
	CenterMaterialiseAfterCommit  Name = "center.materialise.after_commit"
	CenterMaterialiseHalf         Name = "center.materialise.half"
	CenterClaimAfterCommit        Name = "center.claim.after_commit"
	CenterDispatchBeforeCall      Name = "center.dispatch.before_call"
	CenterDispatchAfterCall       Name = "center.dispatch.after_call"
	CenterDispatchAfterCommit     Name = "center.dispatch.after_commit"
	CenterReportBeforeCommit      Name = "center.report.before_commit"
	CenterReportAfterCommit       Name = "center.report.after_commit"
	CenterSweepBeforeCommit       Name = "center.sweep.before_commit"
	CenterSweepAfterCommit        Name = "center.sweep.after_commit"
	CenterScheduleBeforeCommit    Name = "center.schedule.before_commit"
	CenterScheduleAfterCommit     Name = "center.schedule.after_commit"

	ConsumerAcceptBeforeCommit     Name = "consumer.accept.before_commit"
	ConsumerAcceptAfterCommit      Name = "consumer.accept.after_commit"
	ConsumerClaimAfterCommit       Name = "consumer.claim.after_commit"
	ConsumerRepairBeforeCommit     Name = "consumer.repair.before_commit"
	ConsumerRepairAfterCommit      Name = "consumer.repair.after_commit"
	ConsumerCheckpointBeforeCommit Name = "consumer.checkpoint.before_commit"
	ConsumerCheckpointAfterCommit  Name = "consumer.checkpoint.after_commit"
	ConsumerRetireBeforeCommit     Name = "consumer.retire.before_commit"
	ConsumerRetireAfterCommit      Name = "consumer.retire.after_commit"
	ConsumerFreezeBeforeCommit     Name = "consumer.freeze.before_commit"
	ConsumerFreezeAfterCommit      Name = "consumer.freeze.after_commit"
	ConsumerReportAfterCall        Name = "consumer.report.after_call"
	ConsumerFinishBeforeCommit     Name = "consumer.finish.before_commit"
	ConsumerFinishAfterCommit      Name = "consumer.finish.after_commit"
)

var all = []Name{
	CenterCreateBeforeCommit, CenterCreateAfterCommit,
	CenterMaterialiseBeforeCommit, CenterMaterialiseAfterCommit, CenterMaterialiseHalf,
	CenterClaimAfterCommit,
	CenterDispatchBeforeCall, CenterDispatchAfterCall, CenterDispatchAfterCommit,
	CenterReportBeforeCommit, CenterReportAfterCommit,
	CenterSweepBeforeCommit, CenterSweepAfterCommit,
	CenterScheduleBeforeCommit, CenterScheduleAfterCommit,
	ConsumerAcceptBeforeCommit, ConsumerAcceptAfterCommit,
	ConsumerClaimAfterCommit,
	ConsumerRepairBeforeCommit, ConsumerRepairAfterCommit,
	ConsumerCheckpointBeforeCommit, ConsumerCheckpointAfterCommit,
	ConsumerRetireBeforeCommit, ConsumerRetireAfterCommit,
	ConsumerFreezeBeforeCommit, ConsumerFreezeAfterCommit,
	ConsumerReportAfterCall,
	ConsumerFinishBeforeCommit, ConsumerFinishAfterCommit,
}

// All lists every place, for tests that go through them.
func All() []Name { return slices.Clone(all) }
