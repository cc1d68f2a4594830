package bundle_test

import (
	"context"
	"testing"

	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/internal/bundle"
)

// A download that has begun can't say any more why it ends.
func TestARefusedKeyIsToldBeforeTheFirstByte(t *testing.T) {
	var asked []string
	e := bundle.Export{TaskID: "task", Keys: []string{"no key", "another"}, Center: func(_ context.Context, key string) (*centerv1.GetEvidenceResponse, error) {
		asked = append(asked, key)
		if key != "" {
			return nil, fault.New(fault.InvalidArgument, "that is no key")
		}
		return &centerv1.GetEvidenceResponse{Header: &evidencev1.Envelope{}}, nil
	}}
	write, err := e.Open(t.Context())
	if write != nil || fault.ReasonOf(err) != fault.InvalidArgument {
		t.Errorf("opened, or refused otherwise: %v", err)
	}
	if len(asked) != 2 || asked[0] != "" || asked[1] != "no key" {
		t.Errorf("asked for %q", asked)
	}
}
