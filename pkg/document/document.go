// Package document turns the protocol's signed nouns into envelopes and back.
//
// It promises that the bytes it verified are the bytes it parsed, that a
// document with fields this version does not know is refused, and that each
// kind opens only as itself. It never re-serialises a document: what was
// signed once is stored and served as it is. Coordinates are only parsed here;
// whether they are the ones a caller expects is package check's business.
package document

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/evidence"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// The payload types, one a kind.
const (
	TypeInstruction = "application/vnd.lockstep.instruction.v1+protobuf"
	TypeHeader      = "application/vnd.lockstep.manifest-header.v1+protobuf"
	TypeSnapshot    = "application/vnd.lockstep.snapshot.v1+protobuf"
	TypeAbsence     = "application/vnd.lockstep.absence-proof.v1+protobuf"
	TypeUndecidable = "application/vnd.lockstep.undecidable.v1+protobuf"
	TypeReport      = "application/vnd.lockstep.report.v1+protobuf"
)

var (
	// ErrUnknownField: the document says something this version can't read; refuse it.
	ErrUnknownField = errors.New("document has fields this version does not know")
	// ErrMalformed: the signed bytes are no such document, or a field has an impossible value.
	ErrMalformed = errors.New("malformed document")
)

// seal signs the one serialisation of m.
func seal(s *evidence.Signer, payloadType string, m proto.Message) (evidence.Envelope, error) {
	payload, err := proto.Marshal(m)
	if err != nil {
		return evidence.Envelope{}, fmt.Errorf("serialise %s: %w", payloadType, err)
	}
	return s.Sign(payloadType, payload), nil
}

// open verifies the envelope and parses exactly the verified bytes into m.
func open(env evidence.Envelope, payloadType string, keys []evidence.Key, m proto.Message) error {
	payload, _, err := evidence.Verify(env, payloadType, keys)
	if err != nil {
		return err
	}
	return parse(payload, m)
}

func parse(payload []byte, m proto.Message) error {
	if err := proto.Unmarshal(payload, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if hasUnknown(m.ProtoReflect()) {
		return ErrUnknownField
	}
	return nil
}

// hasUnknown looks for unknown fields at any depth.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				found = found || hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// EnvelopeToProto gives the wire form of an envelope.
func EnvelopeToProto(env evidence.Envelope) *evidencev1.Envelope {
	out := &evidencev1.Envelope{PayloadType: env.PayloadType, Payload: env.Payload}
	for _, s := range env.Signatures {
		out.Signatures = append(out.Signatures, &evidencev1.Signature{KeyId: s.KeyID, Sig: s.Sig})
	}
	return out
}

// EnvelopeFromProto reads the wire form; a nil envelope has no signature and verifies nowhere.
func EnvelopeFromProto(m *evidencev1.Envelope) evidence.Envelope {
	out := evidence.Envelope{PayloadType: m.GetPayloadType(), Payload: m.GetPayload()}
	for _, s := range m.GetSignatures() {
		out.Signatures = append(out.Signatures, evidence.Signature{KeyID: s.GetKeyId(), Sig: s.GetSig()})
	}
	return out
}

// MarshalEnvelope gives the bytes an envelope is stored as.
func MarshalEnvelope(env evidence.Envelope) ([]byte, error) {
	return proto.Marshal(EnvelopeToProto(env))
}

// UnmarshalEnvelope reads what MarshalEnvelope wrote.
func UnmarshalEnvelope(stored []byte) (evidence.Envelope, error) {
	var m evidencev1.Envelope
	if err := proto.Unmarshal(stored, &m); err != nil {
		return evidence.Envelope{}, fmt.Errorf("stored envelope: %w: %w", ErrMalformed, err)
	}
	return EnvelopeFromProto(&m), nil
}

func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromProto(ts *timestamppb.Timestamp) (time.Time, error) {
	if ts == nil {
		return time.Time{}, nil
	}
	if err := ts.CheckValid(); err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return ts.AsTime(), nil
}

func nodeFromProto(field string, b []byte) (evidence.Node, error) {
	if len(b) != len(evidence.Node{}) {
		return evidence.Node{}, fmt.Errorf("%w: %s has %d bytes, not 32", ErrMalformed, field, len(b))
	}
	return evidence.Node(b), nil
}
