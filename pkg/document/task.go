package document

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

func coordinatesToProto(c protocol.Coordinates) *evidencev1.Coordinates {
	return &evidencev1.Coordinates{
		Source: c.Source, Consumer: c.Consumer, TaskId: c.TaskID, TenantId: c.TenantID,
		CollectionId: c.CollectionID, GrantEpoch: c.GrantEpoch, CenterEpoch: c.CenterEpoch,
	}
}

func coordinatesFromProto(m *evidencev1.Coordinates) protocol.Coordinates {
	return protocol.Coordinates{
		Source: m.GetSource(), Consumer: m.GetConsumer(), TaskID: m.GetTaskId(), TenantID: m.GetTenantId(),
		CollectionID: m.GetCollectionId(), GrantEpoch: m.GetGrantEpoch(), CenterEpoch: m.GetCenterEpoch(),
	}
}

// SealInstruction signs an instruction.
func SealInstruction(s *evidence.Signer, d *protocol.Instruction) (evidence.Envelope, error) {
	return seal(s, TypeInstruction, &evidencev1.Instruction{
		At: coordinatesToProto(d.At), Attempt: int32(d.Attempt), //nolint:gosec // attempts are bounded by max_dispatch_attempts
		Scope: ScopeToProto(d.Scope), Key: d.Key, Mode: ModeToProto(d.Mode),
		WindowStart: timeToProto(d.WindowStart), ManifestId: d.ManifestID, ManifestRoot: d.ManifestRoot[:],
		RowCount: d.RowCount, IssuedAt: timeToProto(d.IssuedAt), BreakerOverride: d.BreakerOverride,
	})
}

// OpenInstruction verifies and parses an instruction.
func OpenInstruction(env evidence.Envelope, keys []evidence.Key) (*protocol.Instruction, error) {
	var m evidencev1.Instruction
	if err := open(env, TypeInstruction, keys, &m); err != nil {
		return nil, fmt.Errorf("instruction: %w", err)
	}
	var p fields
	d := &protocol.Instruction{
		At: coordinatesFromProto(m.GetAt()), Attempt: int(m.GetAttempt()),
		Scope: protocol.Scope(p.word(m.GetScope(), scopePrefix, "scope")), Key: m.GetKey(),
		Mode:        protocol.Mode(p.word(m.GetMode(), modePrefix, "mode")),
		WindowStart: p.time(m.GetWindowStart()), ManifestID: m.GetManifestId(),
		ManifestRoot: p.node("manifest_root", m.GetManifestRoot()), RowCount: m.GetRowCount(),
		IssuedAt: p.time(m.GetIssuedAt()), BreakerOverride: m.GetBreakerOverride(),
	}
	if p.err != nil {
		return nil, fmt.Errorf("instruction: %w", p.err)
	}
	return d, nil
}

// SealHeader signs a manifest header.
func SealHeader(s *evidence.Signer, d *protocol.Header) (evidence.Envelope, error) {
	return seal(s, TypeHeader, &evidencev1.ManifestHeader{
		At: coordinatesToProto(d.At), ManifestId: d.ManifestID, Scope: ScopeToProto(d.Scope), Key: d.Key,
		Mode: ModeToProto(d.Mode), WindowStart: timeToProto(d.WindowStart), CanonId: d.CanonID, KeyKind: d.KeyKind,
		RowCount: d.RowCount, PageRows: int32(d.PageRows), PageCount: int32(d.PageCount), //nolint:gosec // the configuration bounds both
		Root: d.Root[:], IssuedAt: timeToProto(d.IssuedAt), BreakerOverride: d.BreakerOverride,
	})
}

// OpenHeader verifies and parses a manifest header.
func OpenHeader(env evidence.Envelope, keys []evidence.Key) (*protocol.Header, error) {
	var m evidencev1.ManifestHeader
	if err := open(env, TypeHeader, keys, &m); err != nil {
		return nil, fmt.Errorf("manifest header: %w", err)
	}
	var p fields
	d := &protocol.Header{
		At: coordinatesFromProto(m.GetAt()), ManifestID: m.GetManifestId(),
		Scope: protocol.Scope(p.word(m.GetScope(), scopePrefix, "scope")), Key: m.GetKey(),
		Mode:        protocol.Mode(p.word(m.GetMode(), modePrefix, "mode")),
		WindowStart: p.time(m.GetWindowStart()), CanonID: m.GetCanonId(), KeyKind: m.GetKeyKind(),
		RowCount: m.GetRowCount(), PageRows: int(m.GetPageRows()), PageCount: int(m.GetPageCount()),
		Root: p.node("root", m.GetRoot()), IssuedAt: p.time(m.GetIssuedAt()), BreakerOverride: m.GetBreakerOverride(),
	}
	if p.err != nil {
		return nil, fmt.Errorf("manifest header: %w", p.err)
	}
	return d, nil
}

// SourceOf reads who a header or an instruction says is its center, to find the keys that it is
// then opened with. Nothing it says is verified.
func SourceOf(env evidence.Envelope) (string, error) {
	var m interface {
		proto.Message
		GetAt() *evidencev1.Coordinates
	}
	switch env.PayloadType {
	case TypeHeader:
		m = &evidencev1.ManifestHeader{}
	case TypeInstruction:
		m = &evidencev1.Instruction{}
	default:
		return "", evidence.ErrDocumentType
	}
	if err := parse(env.Payload, m); err != nil {
		return "", fmt.Errorf("%s: %w", env.PayloadType, err)
	}
	return m.GetAt().GetSource(), nil
}

// SealReport signs a report.
func SealReport(s *evidence.Signer, d *protocol.Report) (evidence.Envelope, error) {
	return seal(s, TypeReport, reportToProto(d))
}

// OpenReport verifies and parses a report.
func OpenReport(env evidence.Envelope, keys []evidence.Key) (*protocol.Report, error) {
	var m evidencev1.Report
	if err := open(env, TypeReport, keys, &m); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return reportFromProto(&m)
}

// ParseReport reads a report's payload that was verified when it was stored.
func ParseReport(payload []byte) (*protocol.Report, error) {
	var m evidencev1.Report
	if err := parse(payload, &m); err != nil {
		return nil, fmt.Errorf("stored report: %w", err)
	}
	return reportFromProto(&m)
}

func reportToProto(d *protocol.Report) *evidencev1.Report {
	m := &evidencev1.Report{
		At: coordinatesToProto(d.At), Attempt: int32(d.Attempt), //nolint:gosec // attempts are bounded by max_dispatch_attempts
		State: StateToProto(d.State), Phase: PhaseToProto(d.Phase), Code: d.Code,
		ManifestId: d.ManifestID, ManifestRoot: d.ManifestRoot[:],
		CenterRowsScanned: d.CenterScanned, LocalRowsScanned: d.LocalScanned,
		CenterComplete: d.CenterComplete, LocalComplete: d.LocalComplete, Verified: VerifiedToProto(d.Verified),
		Counts: CountsToProto(d.Counts), Fetched: d.Fetched, WireBytes: d.WireBytes,
		Resumed: int32(d.Resumed), RetireCode: d.RetireCode, //nolint:gosec // a task is resumed a handful of times
		IssuedAt: timeToProto(d.IssuedAt), StartedAt: timeToProto(d.StartedAt),
	}
	for _, it := range d.Items {
		m.Items = append(m.Items, &evidencev1.ErrorItem{
			Consumer: it.Consumer, TaskId: it.TaskID, Range: it.Range, Key: it.Key, Revision: it.Revision, Code: it.Code,
		})
	}
	return m
}

func reportFromProto(m *evidencev1.Report) (*protocol.Report, error) {
	var p fields
	d := &protocol.Report{
		At: coordinatesFromProto(m.GetAt()), Attempt: int(m.GetAttempt()),
		State: protocol.State(p.word(m.GetState(), statePrefix, "state")), Phase: PhaseFromProto(m.GetPhase()), Code: m.GetCode(),
		ManifestID: m.GetManifestId(), ManifestRoot: p.node("manifest_root", m.GetManifestRoot()),
		CenterScanned: m.GetCenterRowsScanned(), LocalScanned: m.GetLocalRowsScanned(),
		CenterComplete: m.GetCenterComplete(), LocalComplete: m.GetLocalComplete(),
		Verified: protocol.Verified(p.word(m.GetVerified(), verifiedPrefix, "verified")),
		Counts:   CountsFromProto(m.GetCounts()), Fetched: m.GetFetched(), WireBytes: m.GetWireBytes(),
		Resumed: int(m.GetResumed()), RetireCode: m.GetRetireCode(),
		IssuedAt: p.time(m.GetIssuedAt()), StartedAt: p.time(m.GetStartedAt()),
	}
	for _, it := range m.GetItems() {
		d.Items = append(d.Items, protocol.ErrorItem{
			Consumer: it.GetConsumer(), TaskID: it.GetTaskId(), Range: it.GetRange(), Key: it.GetKey(),
			Revision: it.GetRevision(), Code: it.GetCode(),
		})
	}
	if p.err != nil {
		return nil, fmt.Errorf("report: %w", p.err)
	}
	return d, nil
}

// CountsToProto gives the wire form of the counts by class.
func CountsToProto(counts []protocol.ClassCount) []*evidencev1.ClassCount {
	var out []*evidencev1.ClassCount
	for _, c := range counts {
		out = append(out, &evidencev1.ClassCount{
			Class: string(c.Class), Found: c.Found, Repaired: c.Repaired, Settled: c.Settled, Retired: c.Retired,
			Reported: c.Reported, Deferred: c.Deferred, Exhausted: c.Exhausted, Quarantined: c.QuarantinedCount,
		})
	}
	return out
}

// CountsFromProto reads the wire form of the counts by class.
func CountsFromProto(counts []*evidencev1.ClassCount) []protocol.ClassCount {
	var out []protocol.ClassCount
	for _, c := range counts {
		out = append(out, protocol.ClassCount{
			Class: protocol.Class(c.GetClass()), Found: c.GetFound(), Repaired: c.GetRepaired(), Settled: c.GetSettled(),
			Retired: c.GetRetired(), Reported: c.GetReported(), Deferred: c.GetDeferred(), Exhausted: c.GetExhausted(),
			QuarantinedCount: c.GetQuarantined(),
		})
	}
	return out
}
