package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

func answer(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// signed makes a trust store and what both sides signed of a manifest of no
// rows, at which one extra row was retired.
func signed(t *testing.T, trustFile string) (header, report, instruction, proof *evidencev1.Envelope) {
	t.Helper()
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var signers []*evidence.Signer
	var trusted []identity.TrustKey
	for _, app := range []string{"form-center", "svc-hall"} {
		key, err := identity.GenerateKeyFile(filepath.Join(t.TempDir(), "key"), identity.KeyParams{
			AppKey: app, KeyID: app, Use: []identity.Use{identity.UseStatement}, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		signer, err := key.Signer()
		if err != nil {
			t.Fatal(err)
		}
		signers, trusted = append(signers, signer), append(trusted, key.Public())
	}
	if err := identity.WriteTrust(trustFile, trusted...); err != nil {
		t.Fatal(err)
	}
	at := protocol.Coordinates{Source: "form-center", Consumer: "svc-hall", TaskID: taskID, TenantID: 101, CollectionID: "enrolment", GrantEpoch: 1, CenterEpoch: 1}
	root := evidence.EmptyRoot()
	sealed := func(env evidence.Envelope, err error) *evidencev1.Envelope {
		if err != nil {
			t.Fatal(err)
		}
		return document.EnvelopeToProto(env)
	}
	return sealed(document.SealHeader(signers[0], &protocol.Header{
			At: at, ManifestID: taskID, Scope: protocol.Collection, Mode: protocol.Repair, CanonID: canon.ID, KeyKind: "uuid", PageRows: 128, Root: root, IssuedAt: start,
		})), sealed(document.SealReport(signers[1], &protocol.Report{
			At: at, Attempt: 1, State: protocol.Completed, ManifestID: taskID, ManifestRoot: root, LocalScanned: 1, CenterComplete: true, LocalComplete: true,
			Verified: protocol.Hashes, Counts: []protocol.ClassCount{{Class: protocol.ExtraRow, Found: 1, Retired: 1}}, IssuedAt: start,
		})), sealed(document.SealInstruction(signers[0], &protocol.Instruction{
			At: at, Attempt: 1, Scope: protocol.Collection, Mode: protocol.Repair, ManifestID: taskID, ManifestRoot: root, IssuedAt: start,
		})), sealed(document.SealAbsence(signers[0], &protocol.Absence{
			At: at, Key: exampleKey, ProofID: "p", IssuedAt: start, ManifestID: taskID, ManifestRoot: root,
		}))
}

func TestEvidence(t *testing.T) {
	dir := t.TempDir()
	trust, file := filepath.Join(dir, "trust.json"), filepath.Join(dir, "task.jsonl")
	header, report, instruction, proof := signed(t, trust)
	w := setup(t, map[string]string{
		"GET /v1/tasks/" + taskID + "/evidence": answer(t, &centerv1.GetEvidenceResponse{Header: header, Reports: []*evidencev1.Envelope{report}}),
		"GET /v1/tasks/" + taskID + "/evidence?key=" + exampleKey: answer(t, &centerv1.GetEvidenceResponse{
			Header: header, Membership: &centerv1.GetEvidenceResponse_Absent{Absent: &centerv1.Absence{}},
		}),
		"GET /v1/work/" + taskID + "/evidence": answer(t, &consumerv1.ListEvidenceResponse{Instruction: instruction, Report: report, NextPageToken: "n"}),
		"GET /v1/work/" + taskID + "/evidence?page_token=n": answer(t, &consumerv1.ListEvidenceResponse{
			Words: []*consumerv1.ListEvidenceResponse_Word{{Key: exampleKey, Outcome: "RETIRED", Word: proof}},
		}),
		"GET /v1/tasks/unready/evidence": `{}`,
	})
	export := []string{"evidence", "export", taskID, "--key", exampleKey, "--words", "--out", file}
	if code := w.run(t, export...); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if code := w.run(t, export...); code != exitError || !strings.Contains(w.err.String(), "never overwritten") {
		t.Errorf("a second time: exit code %d, %s", code, w.err.String())
	}
	if code := w.run(t, "evidence", "export", "unready"); code != exitRefused || w.out.Len() > 0 {
		t.Errorf("without a manifest: exit code %d, %s", code, w.out.String())
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text []byte
		more []string
		code int
		says string
	}{
		"everything holds":   {whole, nil, exitDone, "record " + exampleKey + " was not among those rows"},
		"as JSON":            {whole, []string{"--json"}, exitDone, `"ok": true`},
		"another task":       {whole, []string{"--task", "x"}, exitDiffers, "DOES NOT HOLD: line 1: TASK_MISMATCH"},
		"another, as JSON":   {whole, []string{"--task", "x", "--json"}, exitDiffers, `"code": "TASK_MISMATCH"`},
		"changed":            {bytes.Replace(whole, []byte(`"RETIRED"`), []byte(`"SETTLED"`), 1), nil, exitDiffers, "HASH_MISMATCH"},
		"cut off":            {whole[:bytes.LastIndexByte(whole[:len(whole)-1], '\n')+1], nil, exitDiffers, "BUNDLE_INCOMPLETE"},
		"no evidence at all": {[]byte("hello\n"), nil, exitError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
			asked := len(w.asked)
			if code := w.run(t, append([]string{"evidence", "verify", path, "--trust", trust}, c.more...)...); code != c.code || !strings.Contains(w.out.String(), c.says) {
				t.Errorf("exit code %d, want %d:\n%s%s", code, c.code, w.out.String(), w.err.String())
			}
			if len(w.asked) != asked {
				t.Error("a service was asked")
			}
		})
	}
}
