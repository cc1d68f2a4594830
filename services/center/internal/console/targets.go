package console

import (
	"context"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	shell "lockstep.dev/services/internal/console"
)

func (p *pages) targets(ctx context.Context, _ *shell.Request) (shell.View, error) {
	got, err := p.admin.ListTargets(ctx, &centerv1.ListTargetsRequest{})
	return shell.View{Title: "Targets", Data: got.GetTargets()}, err
}
