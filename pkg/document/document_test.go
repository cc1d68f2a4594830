package document

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

var (
	at = protocol.Coordinates{
		Source: "records", Consumer: "hall", TaskID: strings.Repeat("ab", 16), TenantID: 7,
		CollectionID: "form-1", GrantEpoch: 3, CenterEpoch: 1,
	}
	noon = time.Date(2026, 3, 4, 12, 0, 0, 123456000, time.UTC)
)

type fixture struct {
	signer *evidence.Signer
	keys   []evidence.Key
	other  []evidence.Key
}

func setup(t *testing.T) fixture {
	t.Helper()
	key := func(seed byte) ed25519.PrivateKey {
		return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	}
	public := func(id string, k ed25519.PrivateKey) []evidence.Key {
		return []evidence.Key{{ID: id, Public: k.Public().(ed25519.PublicKey)}}
	}
	return fixture{signer: evidence.NewSigner("k1", key(1)), keys: public("k1", key(1)), other: public("k1", key(2))}
}

func snapshot() *protocol.Snapshot {
	return &protocol.Snapshot{
		At: at, Key: strings.Repeat("0f", 16), Revision: 4, Hash: canon.Hash{1, 2, 3}, SchemaVersion: 2, Sequence: 9,
		Content: []byte(`{"a": 1.0}`), Nonce: []byte("0123456789abcdef"), EventID: "e-1", IssuedAt: noon,
	}
}

func absence() *protocol.Absence {
	neighbour := func(b byte, i uint64) *evidence.Neighbour {
		return &evidence.Neighbour{
			Row:   evidence.Row{Key: strings.Repeat(string([]byte{b}), 16), Revision: 1, Hash: canon.Hash{b}, Deleted: b == 2},
			Index: i, Path: []evidence.Node{{b}, {b, b}},
		}
	}
	return &protocol.Absence{
		At: at, Key: strings.Repeat("01", 16), ExpectedRevision: 5, Nonce: []byte("0123456789abcdef"), ProofID: "p-1",
		IssuedAt: noon, ManifestID: strings.Repeat("cd", 16), ManifestRoot: evidence.Node{9},
		Evidence: evidence.Absence{Size: 4, Left: neighbour(1, 1), Right: neighbour(2, 2)},
	}
}

// everyKind seals and opens one document of each kind.
func everyKind(t *testing.T) map[string]struct {
	typ  string
	want any
	seal func(*evidence.Signer) (evidence.Envelope, error)
	open func(evidence.Envelope, []evidence.Key) (any, error)
} {
	t.Helper()
	instruction := &protocol.Instruction{
		At: at, Attempt: 2, Scope: protocol.Collection, Mode: protocol.Repair, WindowStart: noon,
		ManifestID: strings.Repeat("cd", 16), ManifestRoot: evidence.Node{9}, RowCount: 4, IssuedAt: noon, BreakerOverride: true,
	}
	header := &protocol.Header{
		At: at, ManifestID: strings.Repeat("cd", 16), Scope: protocol.Record, Key: strings.Repeat("0f", 16), Mode: protocol.DryRun,
		WindowStart: noon, CanonID: canon.ID, KeyKind: protocol.KeyKindUUID, RowCount: 4, PageRows: 128, PageCount: 1,
		Root: evidence.Node{9}, IssuedAt: noon,
	}
	report := &protocol.Report{
		At: at, Attempt: 2, State: protocol.Partial, Phase: protocol.Reporting, Code: "", ManifestID: strings.Repeat("cd", 16),
		ManifestRoot: evidence.Node{9}, CenterScanned: 4, LocalScanned: 5, CenterComplete: true, LocalComplete: true,
		Verified: protocol.Hashes, Counts: []protocol.ClassCount{{Class: protocol.Stale, Found: 3, Repaired: 2, QuarantinedCount: 1}},
		Fetched: 3, WireBytes: 999, Resumed: 1, RetireCode: "EXTRAS_LIMIT",
		Items:    []protocol.ErrorItem{{Consumer: "hall", TaskID: at.TaskID, Range: "0-1", Key: "k", Revision: 4, Code: "QUARANTINED"}},
		IssuedAt: noon, StartedAt: noon,
	}
	undecidable := &protocol.Undecidable{At: at, Key: strings.Repeat("0f", 16), Nonce: []byte("0123456789abcdef"), Code: "ROW_GONE", IssuedAt: noon}
	type kind = struct {
		typ  string
		want any
		seal func(*evidence.Signer) (evidence.Envelope, error)
		open func(evidence.Envelope, []evidence.Key) (any, error)
	}
	return map[string]kind{
		"instruction": {
			TypeInstruction, instruction,
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealInstruction(s, instruction) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenInstruction(e, k) },
		},
		"header": {
			TypeHeader, header,
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealHeader(s, header) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenHeader(e, k) },
		},
		"snapshot": {
			TypeSnapshot, snapshot(),
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealSnapshot(s, snapshot()) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenSnapshot(e, k) },
		},
		"absence": {
			TypeAbsence, absence(),
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealAbsence(s, absence()) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenAbsence(e, k) },
		},
		"undecidable": {
			TypeUndecidable, undecidable,
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealUndecidable(s, undecidable) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenUndecidable(e, k) },
		},
		"report": {
			TypeReport, report,
			func(s *evidence.Signer) (evidence.Envelope, error) { return SealReport(s, report) },
			func(e evidence.Envelope, k []evidence.Key) (any, error) { return OpenReport(e, k) },
		},
	}
}

func TestEveryKind(t *testing.T) {
	f := setup(t)
	kinds := everyKind(t)
	for name, k := range kinds {
		env, err := k.seal(f.signer)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name+" opens as what was sealed", func(t *testing.T) {
			stored, err := MarshalEnvelope(env)
			if err != nil {
				t.Fatal(err)
			}
			again, err := UnmarshalEnvelope(stored)
			if err != nil {
				t.Fatal(err)
			}
			got, err := k.open(again, f.keys)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, k.want) {
				t.Fatalf("opened\n%+v\nsealed\n%+v", got, k.want)
			}
		})
		t.Run(name+" of another signer is refused", func(t *testing.T) {
			if _, err := k.open(env, f.other); !errors.Is(err, evidence.ErrSignature) {
				t.Fatalf("got %v, want ErrSignature", err)
			}
		})
		t.Run(name+" without a signature is refused", func(t *testing.T) {
			if _, err := k.open(evidence.Envelope{PayloadType: k.typ, Payload: env.Payload}, f.keys); !errors.Is(err, evidence.ErrSignature) {
				t.Fatalf("got %v, want ErrSignature", err)
			}
		})
		t.Run(name+" with one bit changed is refused", func(t *testing.T) {
			bent := env
			bent.Payload = bytes.Clone(env.Payload)
			bent.Payload[len(bent.Payload)/2] ^= 1
			if _, err := k.open(bent, f.keys); !errors.Is(err, evidence.ErrSignature) {
				t.Fatalf("got %v, want ErrSignature", err)
			}
		})
		t.Run(name+" with an unknown field is refused", func(t *testing.T) {
			payload := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(env.Payload), 999, protowire.VarintType), 1)
			if _, err := k.open(f.signer.Sign(k.typ, payload), f.keys); !errors.Is(err, ErrUnknownField) {
				t.Fatalf("got %v, want ErrUnknownField", err)
			}
		})
		t.Run(name+" that is no such message is refused", func(t *testing.T) {
			if _, err := k.open(f.signer.Sign(k.typ, []byte{0xff}), f.keys); !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
		})
		for other, o := range kinds {
			if other == name {
				continue
			}
			t.Run(name+" does not open as "+other, func(t *testing.T) {
				if _, err := o.open(env, f.keys); !errors.Is(err, evidence.ErrDocumentType) {
					t.Fatalf("got %v, want ErrDocumentType", err)
				}
			})
		}
	}
}

func TestUnknownFieldAtDepth(t *testing.T) {
	f := setup(t)
	m := &evidencev1.Report{
		State: evidencev1.TaskState_TASK_STATE_RUNNING, Verified: evidencev1.Verified_VERIFIED_HASHES,
		ManifestRoot: make([]byte, 32), Counts: []*evidencev1.ClassCount{{Class: "STALE"}},
	}
	m.Counts[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
	payload, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReport(f.signer.Sign(TypeReport, payload), f.keys); !errors.Is(err, ErrUnknownField) {
		t.Fatalf("got %v, want ErrUnknownField", err)
	}
}

func TestImpossibleFields(t *testing.T) {
	f := setup(t)
	cases := map[string]proto.Message{
		"a scope this version does not know": &evidencev1.Instruction{Scope: 99, Mode: 1, ManifestRoot: make([]byte, 32)},
		"no mode":                            &evidencev1.Instruction{Scope: 2, ManifestRoot: make([]byte, 32)},
		"a short root":                       &evidencev1.Instruction{Scope: 2, Mode: 1, ManifestRoot: make([]byte, 31)},
		"no root":                            &evidencev1.Instruction{Scope: 2, Mode: 1},
	}
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			payload, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := OpenInstruction(f.signer.Sign(TypeInstruction, payload), f.keys); !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
		})
	}
}

func TestSnapshotContent(t *testing.T) {
	f := setup(t)
	for name, content := range map[string][]byte{"SQL NULL stays absent": nil, "an empty text stays empty": {}, "JSON null stays null": []byte("null")} {
		t.Run(name, func(t *testing.T) {
			s := snapshot()
			s.Content = content
			env, err := SealSnapshot(f.signer, s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := OpenSnapshot(env, f.keys)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Content == nil) != (content == nil) || !bytes.Equal(got.Content, content) {
				t.Fatalf("content %q came back as %q", content, got.Content)
			}
		})
	}
}

func TestMismatch(t *testing.T) {
	change := func(f func(*protocol.Coordinates)) protocol.Coordinates {
		c := at
		f(&c)
		return c
	}
	cases := []struct {
		name string
		got  protocol.Coordinates
		code string
	}{
		{"the same", at, ""},
		{"another source", change(func(c *protocol.Coordinates) { c.Source = "x" }), "AUDIENCE_MISMATCH"},
		{"another consumer", change(func(c *protocol.Coordinates) { c.Consumer = "x" }), "AUDIENCE_MISMATCH"},
		{"another task", change(func(c *protocol.Coordinates) { c.TaskID = "x" }), "TASK_MISMATCH"},
		{"another tenant", change(func(c *protocol.Coordinates) { c.TenantID = 8 }), "TENANT_MISMATCH"},
		{"another collection", change(func(c *protocol.Coordinates) { c.CollectionID = "x" }), "COLLECTION_MISMATCH"},
		{"another grant epoch", change(func(c *protocol.Coordinates) { c.GrantEpoch = 4 }), "GRANT_EPOCH_MISMATCH"},
		{"another center epoch is the high-water mark's business", change(func(c *protocol.Coordinates) { c.CenterEpoch = 2 }), ""},
	}
	for _, c := range cases {
		if code := Mismatch(c.got, at); code != c.code {
			t.Errorf("%s: got %q, want %q", c.name, code, c.code)
		}
	}
	if NonceMismatch([]byte("a"), []byte("b")) != "NONCE_MISMATCH" || NonceMismatch(nil, nil) != "NONCE_MISMATCH" || NonceMismatch([]byte("a"), []byte("a")) != "" {
		t.Error("a nonce matches only itself, and an empty one nothing")
	}
}
