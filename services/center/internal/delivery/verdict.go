package delivery

import (
	"strings"

	"go.uber.org/zap"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/store"
)

// verdict says what an attempt's code calls for.
type verdict int

const (
	retry verdict = iota // it may go better later
	fail                 // it can't get better by trying; an operator has to look
	drop                 // there is nothing that may be sent
)

// verdicts of the codes; every other one, and none, is retried until the budget
// is spent.
var verdicts = map[fault.Reason]verdict{
	fault.GrantRevoked:  drop,
	fault.RowGone:       drop,
	fault.ScopeMismatch: drop,

	fault.CanonRefused:   fail,
	fault.RevisionZero:   fail,
	fault.OrderViolation: fail,
	// The consumer's words on a document that it can't accept, however often.
	fault.RollbackDetected:     fail,
	fault.Quarantined:          fail,
	fault.AudienceMismatch:     fail,
	fault.TaskMismatch:         fail,
	fault.TenantMismatch:       fail,
	fault.CollectionMismatch:   fail,
	fault.KeyMismatch:          fail,
	fault.NonceMismatch:        fail,
	fault.HashMismatch:         fail,
	fault.RevisionMismatch:     fail,
	fault.DocumentType:         fail,
	fault.DocumentUnknownField: fail,
	fault.InvalidArgument:      fail,
}

// failed is the conclusion of an attempt without an answer of the consumer's.
func (s *Sender) failed(d *store.Delivery, sent *protocol.Snapshot, err error) store.Conclusion {
	code := fault.ReasonOf(err)
	end := store.Conclusion{State: store.DeliveryPending, Code: string(code), Wait: s.Policy.Backoff(d.Attempts)}
	if code == fault.None {
		end.Code = string(fault.Unavailable)
	}
	what := verdicts[code]
	if sent != nil {
		end.Revision, end.EventID = sent.Revision, sent.EventID
		if code == fault.ScopeMismatch {
			what = fail // the consumer's word: the key is held elsewhere over there
		}
	}
	switch {
	case what == drop:
		end.State = store.DeliveryDropped
	case what == fail, d.Attempts >= s.Policy.MaxAttempts:
		end.State = store.DeliveryFailed
	}
	if end.State != store.DeliveryDropped {
		s.Log.Warn("not delivered", zap.Stringer("delivery", d.ID), zap.String("consumer", d.Consumer), zap.Int("attempt", d.Attempts),
			zap.String("code", end.Code), zap.String("state", string(end.State)), zap.Error(err))
	}
	return end
}

// concluded is the conclusion of an attempt that the consumer answered. A
// contradiction was recorded there and not overwritten, so it is given up here:
// only a reconciliation decides about it.
func concluded(sent *protocol.Snapshot, outcome consumerv1.DeliveryOutcome) store.Conclusion {
	end := store.Conclusion{
		State: store.DeliveryDone, Revision: sent.Revision, EventID: sent.EventID,
		Outcome: strings.TrimPrefix(outcome.String(), "DELIVERY_OUTCOME_"),
	}
	switch outcome {
	case consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_APPLIED, consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_DUPLICATE,
		consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_RETIRED:
	case consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_OLDER:
		end.Code = string(fault.LocalAhead)
	case consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_CONFLICT:
		end.State, end.Code = store.DeliveryFailed, string(fault.HashConflict)
	case consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_UNSPECIFIED:
		fallthrough
	default:
		end.State, end.Code, end.Outcome = store.DeliveryFailed, string(fault.DispatchFailed), ""
	}
	return end
}
