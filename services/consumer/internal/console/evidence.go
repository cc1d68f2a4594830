package console

import (
	"context"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/internal/bundle"
	shell "lockstep.dev/services/internal/console"
)

// evidence is the consumer's part of a task's bundle: its instruction, its report,
// and the center's word behind each effect.
func (p *pages) evidence(ctx context.Context, r *shell.Request) (shell.File, error) {
	id := r.Value("task")
	return shell.Bundle(ctx, "evidence-"+id, bundle.Export{TaskID: id, Consumer: func(ctx context.Context, token string) (*consumerv1.ListEvidenceResponse, error) {
		return shell.Patiently(ctx, func() (*consumerv1.ListEvidenceResponse, error) {
			return p.admin.ListEvidence(ctx, &consumerv1.ListEvidenceRequest{TaskId: id, PageToken: token})
		})
	}})
}
