package bundle

import (
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// said is what the words have in common.
type said struct {
	at  protocol.Coordinates
	key string
}

// word verifies the center's word about one record.
func (v *verifier) word(line *Line) error {
	if line.Key <= v.lastKey {
		return v.fail(fault.OrderViolation, "record %s comes after record %s", line.Key, v.lastKey)
	}
	v.lastKey = line.Key
	env := *line.Envelope
	var s said
	var err error
	switch env.PayloadType {
	case document.TypeSnapshot:
		s, err = v.snapshot(env)
	case document.TypeAbsence:
		s, err = v.absence(env)
	case document.TypeUndecidable:
		s, err = v.undecidable(env)
	default:
		return v.fail(fault.DocumentType, "%q is no word about a record", env.PayloadType)
	}
	if err != nil {
		return err
	}
	outcome := protocol.Outcome(line.Outcome)
	switch {
	case s.key != line.Key, v.header.Scope == protocol.Record && s.key != v.header.Key:
		return v.fail(fault.KeyMismatch, "the word is about record %s", s.key)
	case s.at.CenterEpoch < v.header.At.CenterEpoch:
		return v.fail(fault.GrantEpochMismatch, "the word is of an earlier center epoch than the header")
	case outcome == protocol.Repaired && env.PayloadType != document.TypeSnapshot, outcome == protocol.Retired && env.PayloadType != document.TypeAbsence,
		v.header.Mode == protocol.DryRun && !outcome.Open():
		return v.fail(fault.ResultInconsistent, "%s can't rest on this word", outcome)
	}
	v.words[outcome]++
	v.kinds[env.PayloadType]++
	return nil
}

// of checks the coordinates that a word states.
func (v *verifier) of(at protocol.Coordinates, key string) (said, error) {
	return said{at, key}, v.same(at)
}

func (v *verifier) snapshot(env evidence.Envelope) (said, error) {
	d, err := opened(v, env, v.header.At.Source, document.OpenSnapshot, func(d *protocol.Snapshot) time.Time { return d.IssuedAt })
	if err != nil {
		return said{}, err
	}
	sum, err := canon.Sum(d.Content)
	switch {
	case err != nil:
		return said{}, v.fail(fault.CanonRefused, "the content has no canonical form: %s", err)
	case sum != d.Hash:
		return said{}, v.fail(fault.HashMismatch, "the content does not give the hash that was signed with it")
	case d.Revision < 1:
		return said{}, v.fail(fault.RevisionMismatch, "revision %d", d.Revision)
	}
	return v.of(d.At, d.Key)
}

func (v *verifier) absence(env evidence.Envelope) (said, error) {
	d, err := opened(v, env, v.header.At.Source, document.OpenAbsence, func(d *protocol.Absence) time.Time { return d.IssuedAt })
	if err != nil {
		return said{}, err
	}
	s, err := v.of(d.At, d.Key)
	if err != nil {
		return s, err
	}
	key, err := protocol.ParseKey(d.Key)
	switch {
	case err != nil:
		return s, v.fail(fault.KeyMismatch, "the proof names no record")
	case d.ManifestID != v.header.ManifestID || d.ManifestRoot != v.header.Root:
		return s, v.fail(fault.ManifestMismatch, "the proof is about another manifest")
	}
	if err := d.Evidence.Verify(key, uint64(v.header.RowCount), v.header.Root); err != nil { //nolint:gosec // the header was checked
		return s, v.fail(fault.EvidenceNotProven, "the absence of %s: %s", d.Key, err)
	}
	return s, nil
}

func (v *verifier) undecidable(env evidence.Envelope) (said, error) {
	d, err := opened(v, env, v.header.At.Source, document.OpenUndecidable, func(d *protocol.Undecidable) time.Time { return d.IssuedAt })
	if err != nil {
		return said{}, err
	}
	return v.of(d.At, d.Key)
}

// counts holds the words against the report that the ledger amounted to. Every
// repair and every retirement rests on a word; other outcomes may have none.
func (v *verifier) counts() error {
	if v.result == nil {
		if len(v.kinds) > 0 {
			v.findings.wordsAlone(v.kinds)
		}
		v.findings.rest(v)
		return nil
	}
	reported := map[protocol.Outcome]int64{}
	for _, c := range v.result.Counts {
		reported[protocol.Repaired] += c.Repaired
		reported[protocol.Settled] += c.Settled
		reported[protocol.Retired] += c.Retired
		reported[protocol.Reported] += c.Reported
		reported[protocol.Deferred] += c.Deferred
		reported[protocol.Exhausted] += c.Exhausted
		reported[protocol.Quarantined] += c.QuarantinedCount
	}
	for _, outcome := range []protocol.Outcome{protocol.Repaired, protocol.Retired} {
		if v.words[outcome] != reported[outcome] {
			return v.fail(fault.ResultInconsistent, "the report counts %d %s, and %d have a word here", reported[outcome], outcome, v.words[outcome])
		}
	}
	for outcome, n := range v.words {
		if n > reported[outcome] {
			return v.fail(fault.ResultInconsistent, "the report counts %d %s, and %d words say so", reported[outcome], outcome, n)
		}
	}
	v.findings.counted(v, reported)
	v.findings.rest(v)
	return nil
}
