package failpoint

import "slices"

// The places of ordinary delivery. No task passes them, so they are apart from All.
const (
	CenterOutboxBeforeCommit  Name = "center.outbox.before_commit"
	CenterOutboxAfterCommit   Name = "center.outbox.after_commit"
	CenterDeliveryBeforeCall  Name = "center.delivery.before_call"
	CenterDeliveryAfterCall   Name = "center.delivery.after_call"
	CenterDeliveryAfterCommit Name = "center.delivery.after_commit"
	ConsumerApplyBeforeCommit Name = "consumer.apply.before_commit"
	ConsumerApplyAfterCommit  Name = "consumer.apply.after_commit"
)

var delivery = []Name{
	CenterOutboxBeforeCommit, CenterOutboxAfterCommit,
	CenterDeliveryBeforeCall, CenterDeliveryAfterCall, CenterDeliveryAfterCommit,
	ConsumerApplyBeforeCommit, ConsumerApplyAfterCommit,
}

// Delivery lists every place of ordinary delivery.
func Delivery() []Name { return slices.Clone(delivery) }
