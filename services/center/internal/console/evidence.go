package console

import (
	"context"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
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

func (p *pages) evidenceFile(ctx context.Context, r *shell.Request) (shell.File, error) {
	id, key := r.Value("task"), r.Value("key")
	got, err := p.admin.GetEvidence(ctx, &centerv1.GetEvidenceRequest{TaskId: id, Key: key})
	if err != nil {
		return shell.File{}, err
	}
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(got)
	if err != nil {
		return shell.File{}, err
	}
	name := "evidence-" + id
	if key != "" {
		name += "-" + key
	}
	return shell.File{Name: name + ".json", Media: "application/json", Write: func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	}}, nil
}
