package bills

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/refresh"
)

// review is the frozen identity that lets bills into the snapshots: one attempt
// of one review, and the closed interval of order lines of one shard.
type review struct {
	ProgressID       id        `json:"review_progress_id"`
	ShardID          id        `json:"status_shard_id"`
	PaymentOrderID   id        `json:"payment_order_id"`
	DataVersion      id        `json:"data_version"`
	SubmitRound      id        `json:"submit_round"`
	ApprovalAttempt  id        `json:"approval_attempt"`
	ReviewPlanID     id        `json:"review_plan_id"`
	FinalizeTime     time.Time `json:"finalize_time"`
	FirstOrderBillID id        `json:"first_order_bill_id"`
	LastOrderBillID  id        `json:"last_order_bill_id"`
}

func (r *review) validate(wrong *fault.Error) {
	for _, part := range []struct {
		name  string
		value id
	}{
		{"review_progress_id", r.ProgressID},
		{"status_shard_id", r.ShardID},
		{"payment_order_id", r.PaymentOrderID},
		{"data_version", r.DataVersion},
		{"submit_round", r.SubmitRound},
		{"approval_attempt", r.ApprovalAttempt},
		{"review_plan_id", r.ReviewPlanID},
		{"first_order_bill_id", r.FirstOrderBillID},
		{"last_order_bill_id", r.LastOrderBillID},
	} {
		if part.value == 0 {
			wrong.WithField("review."+part.name, "is needed")
		}
	}
	if r.FinalizeTime.IsZero() || !micros(r.FinalizeTime) {
		wrong.WithField("review.finalize_time", "is needed, to the microsecond at most")
	}
	if r.LastOrderBillID < r.FirstOrderBillID {
		wrong.WithField("review.last_order_bill_id", "is before first_order_bill_id")
	}
}

func (r *review) businessKey() string {
	return fmt.Sprintf("%s:%d:%d:%d:%d:%d:%d:%d", refresh.ReviewCreate, r.ProgressID, r.ShardID, r.PaymentOrderID,
		r.DataVersion, r.SubmitRound, r.ApprovalAttempt, r.ReviewPlanID)
}

// check asks the four stored facts, all of them, by one statement. The order's
// own status and the shard's success are not asked: the transaction that submits
// a review's refresh also writes the shard's success, and the order may have
// been paid since.
func (r *review) check(ctx context.Context, tx pgx.Tx) error {
	var progress, approval, order, shard bool
	err := tx.QueryRow(ctx, `SELECT
		EXISTS (SELECT FROM bills.review_progress p WHERE p.id = $1 AND p.payment_order_id = $3 AND p.data_version = $4
			AND p.submit_round = $5 AND p.approval_attempt = $6 AND p.review_plan_id = $7
			AND p.review_passed AND p.main_task_status = 'SUCCESS' AND p.finalize_time = $8
			AND p.payable_count > 0 AND p.target_order_status = 40),
		EXISTS (SELECT FROM bills.order_approval a WHERE a.payment_order_id = $3 AND a.data_version = $4
			AND a.approval_attempt = $6 AND a.review_plan_id = $7 AND a.submit_round = $5 AND a.approval_status = 'APPROVED'),
		EXISTS (SELECT FROM bills.payment_order o WHERE o.id = $3 AND NOT o.deleted
			AND o.current_publish_version = $4 AND o.submit_round = $5 AND o.review_plan_id = $7),
		EXISTS (SELECT FROM bills.status_shard h WHERE h.id = $2 AND NOT h.deleted AND h.source_type = 'REVIEW_APPROVED' AND h.source_id = $1
			AND h.payment_order_id = $3 AND h.data_version = $4 AND h.submit_round = $5 AND h.approval_attempt = $6 AND h.review_plan_id = $7
			AND h.first_order_bill_id = $9 AND h.last_order_bill_id = $10)`,
		r.ProgressID, r.ShardID, r.PaymentOrderID, r.DataVersion, r.SubmitRound, r.ApprovalAttempt, r.ReviewPlanID,
		r.FinalizeTime, r.FirstOrderBillID, r.LastOrderBillID).Scan(&progress, &approval, &order, &shard)
	if err != nil {
		return fmt.Errorf("read the review's facts: %w", err)
	}
	var missing []string
	for _, fact := range []struct {
		name  string
		holds bool
	}{{"review progress", progress}, {"approval", approval}, {"payment order", order}, {"status shard", shard}} {
		if !fact.holds {
			missing = append(missing, fact.name)
		}
	}
	if len(missing) > 0 {
		return fault.New(fault.IdentityMismatch, "the stored %s does not bear out review progress id %d", strings.Join(missing, ", "), r.ProgressID)
	}
	return nil
}
