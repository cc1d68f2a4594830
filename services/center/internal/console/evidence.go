package console

import (
	"context"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/internal/bundle"
	shell "lockstep.dev/services/internal/console"
)

type evidencePage struct {
	TaskID   string
	Key      string
	Filter   shell.Filter
	Header   *evidencev1.Envelope
	Reports  []*evidencev1.Envelope
	Included *evidencev1.Neighbour
	Absent   *centerv1.Absence
}

func (p *pages) evidence(ctx context.Context, r *shell.Request) (shell.View, error) {
	id, key := r.Value("task"), r.Value("key")
	got, err := p.admin.GetEvidence(ctx, &centerv1.GetEvidenceRequest{TaskId: id, Key: key})
	if err != nil {
		return shell.View{}, err
	}
	filter := r.Filter(shell.Field{Name: "key", Label: "Is this key in the manifest?", Help: "32 lower-case hex digits"})
	filter.Button = "Look"
	return shell.View{Title: "Evidence", Trail: trailOf(&centerv1.Task{TaskId: id}), Data: evidencePage{
		TaskID: id, Key: key, Header: got.GetHeader(), Reports: got.GetReports(), Included: got.GetIncluded(), Absent: got.GetAbsent(), Filter: filter,
	}}, nil
}

// evidenceFile is what lockstep evidence export writes of the task, and of the
// key that is looked at.
func (p *pages) evidenceFile(ctx context.Context, r *shell.Request) (shell.File, error) {
	id := r.Value("task")
	export := bundle.Export{TaskID: id, Center: func(ctx context.Context, key string) (*centerv1.GetEvidenceResponse, error) {
		return shell.Patiently(ctx, func() (*centerv1.GetEvidenceResponse, error) {
			return p.admin.GetEvidence(ctx, &centerv1.GetEvidenceRequest{TaskId: id, Key: key})
		})
	}}
	name := "evidence-" + id
	if key := r.Value("key"); key != "" {
		export.Keys, name = []string{key}, name+"-"+key
	}
	return shell.Bundle(ctx, name, export)
}
