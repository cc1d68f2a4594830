package document

import (
	"fmt"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// SealSnapshot signs a record's current value.
func SealSnapshot(s *evidence.Signer, d *protocol.Snapshot) (evidence.Envelope, error) {
	return seal(s, TypeSnapshot, &evidencev1.Snapshot{
		At: coordinatesToProto(d.At), Key: d.Key, Revision: d.Revision, ContentHash: d.Hash[:], Deleted: d.Deleted,
		SchemaVersion: d.SchemaVersion, Sequence: d.Sequence, Content: d.Content, Nonce: d.Nonce,
		EventId: d.EventID, IssuedAt: timeToProto(d.IssuedAt),
	})
}

// OpenSnapshot verifies and parses a record's current value.
func OpenSnapshot(env evidence.Envelope, keys []evidence.Key) (*protocol.Snapshot, error) {
	var m evidencev1.Snapshot
	if err := open(env, TypeSnapshot, keys, &m); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	var p fields
	d := &protocol.Snapshot{
		At: coordinatesFromProto(m.GetAt()), Key: m.GetKey(), Revision: m.GetRevision(),
		Hash: p.hash("content_hash", m.GetContentHash()), Deleted: m.GetDeleted(),
		SchemaVersion: m.GetSchemaVersion(), Sequence: m.GetSequence(), Content: m.Content,
		Nonce: m.GetNonce(), EventID: m.GetEventId(), IssuedAt: p.time(m.GetIssuedAt()),
	}
	if p.err != nil {
		return nil, fmt.Errorf("snapshot: %w", p.err)
	}
	return d, nil
}

// SealAbsence signs that a record does not exist.
func SealAbsence(s *evidence.Signer, d *protocol.Absence) (evidence.Envelope, error) {
	return seal(s, TypeAbsence, &evidencev1.AbsenceProof{
		At: coordinatesToProto(d.At), Key: d.Key, ExpectedRevision: d.ExpectedRevision, Nonce: d.Nonce,
		ProofId: d.ProofID, IssuedAt: timeToProto(d.IssuedAt), ManifestId: d.ManifestID,
		ManifestRoot: d.ManifestRoot[:], RowCount: d.Evidence.Size,
		Left: NeighbourToProto(d.Evidence.Left), Right: NeighbourToProto(d.Evidence.Right),
	})
}

// OpenAbsence verifies and parses an absence proof. The evidence inside is
// parsed, not yet verified: evidence.Absence.Verify does that.
func OpenAbsence(env evidence.Envelope, keys []evidence.Key) (*protocol.Absence, error) {
	var m evidencev1.AbsenceProof
	if err := open(env, TypeAbsence, keys, &m); err != nil {
		return nil, fmt.Errorf("absence proof: %w", err)
	}
	var p fields
	d := &protocol.Absence{
		At: coordinatesFromProto(m.GetAt()), Key: m.GetKey(), ExpectedRevision: m.GetExpectedRevision(),
		Nonce: m.GetNonce(), ProofID: m.GetProofId(), IssuedAt: p.time(m.GetIssuedAt()),
		ManifestID: m.GetManifestId(), ManifestRoot: p.node("manifest_root", m.GetManifestRoot()),
		Evidence: evidence.Absence{
			Size: m.GetRowCount(), Left: p.neighbour("left", m.GetLeft()), Right: p.neighbour("right", m.GetRight()),
		},
	}
	if p.err != nil {
		return nil, fmt.Errorf("absence proof: %w", p.err)
	}
	return d, nil
}

// SealUndecidable signs that nothing can be stated.
func SealUndecidable(s *evidence.Signer, d *protocol.Undecidable) (evidence.Envelope, error) {
	return seal(s, TypeUndecidable, &evidencev1.Undecidable{
		At: coordinatesToProto(d.At), Key: d.Key, Nonce: d.Nonce, Code: d.Code, IssuedAt: timeToProto(d.IssuedAt),
	})
}

// OpenUndecidable verifies and parses an undecidable word.
func OpenUndecidable(env evidence.Envelope, keys []evidence.Key) (*protocol.Undecidable, error) {
	var m evidencev1.Undecidable
	if err := open(env, TypeUndecidable, keys, &m); err != nil {
		return nil, fmt.Errorf("undecidable: %w", err)
	}
	var p fields
	d := &protocol.Undecidable{
		At: coordinatesFromProto(m.GetAt()), Key: m.GetKey(), Nonce: m.GetNonce(), Code: m.GetCode(),
		IssuedAt: p.time(m.GetIssuedAt()),
	}
	if p.err != nil {
		return nil, fmt.Errorf("undecidable: %w", p.err)
	}
	return d, nil
}

// NeighbourToProto gives the wire form of a proved row; nil for none.
func NeighbourToProto(n *evidence.Neighbour) *evidencev1.Neighbour {
	if n == nil {
		return nil
	}
	m := &evidencev1.Neighbour{
		Row: &evidencev1.TreeRow{
			Key: protocol.FormatKey(n.Row.Key), Revision: n.Row.Revision, ContentHash: n.Row.Hash[:], Deleted: n.Row.Deleted,
		},
		Index: n.Index,
	}
	for i := range n.Path {
		m.Path = append(m.Path, n.Path[i][:])
	}
	return m
}

// NeighbourFromProto reads the wire form; nil for none. What it states is
// parsed, not verified.
func NeighbourFromProto(m *evidencev1.Neighbour) (*evidence.Neighbour, error) {
	var p fields
	n := p.neighbour("neighbour", m)
	return n, p.err
}

func (p *fields) neighbour(field string, m *evidencev1.Neighbour) *evidence.Neighbour {
	if m == nil {
		return nil
	}
	key, err := protocol.ParseKey(m.GetRow().GetKey())
	p.keep(err)
	n := &evidence.Neighbour{
		Row: evidence.Row{
			Key: key, Revision: m.GetRow().GetRevision(),
			Hash: p.hash(field+".content_hash", m.GetRow().GetContentHash()), Deleted: m.GetRow().GetDeleted(),
		},
		Index: m.GetIndex(),
	}
	for _, node := range m.GetPath() {
		n.Path = append(n.Path, p.node(field+".path", node))
	}
	return n
}
