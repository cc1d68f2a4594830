package bundle

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
)

// ErrUnreadable: the file is no bundle of this version.
var ErrUnreadable = errors.New("the file can't be read as a bundle of evidence")

// Failure is the first thing that does not hold.
type Failure struct {
	Line   int
	Reason fault.Reason
	Why    string
}

func (f *Failure) Error() string { return fmt.Sprintf("line %d: %s: %s", f.Line, f.Reason, f.Why) }

// Expect is what the asker knows beforehand; empty fields are not compared.
type Expect struct {
	TaskID, Source, Consumer string
}

// verifier walks through a bundle.
type verifier struct {
	trust  *identity.Trust
	expect Expect

	line  int
	stage int // of order
	sum   hash.Hash
	named string // the task that the first line names

	header   *protocol.Header          // or, without one, what the instruction says of it
	headless bool                      // it is the instruction's
	reports  map[int]evidence.Envelope // by attempt; a task has few
	attempt  int                       // of the last report
	result   *protocol.Report
	lastKey  string
	words    map[protocol.Outcome]int64
	kinds    map[string]int64
	findings Findings
}

// Verify reads a bundle to its end. The findings say what was proven up to a
// failure, too.
func Verify(in io.Reader, trust *identity.Trust, expect Expect) (Findings, error) {
	v := &verifier{trust: trust, expect: expect, sum: sha256.New(), reports: map[int]evidence.Envelope{}, words: map[protocol.Outcome]int64{}, kinds: map[string]int64{}}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		v.line++
		if err := v.next(scanner.Bytes()); err != nil {
			return v.findings, err
		}
	}
	if err := scanner.Err(); err != nil {
		return v.findings, fmt.Errorf("%w: line %d: %w", ErrUnreadable, v.line+1, err)
	}
	if v.stage != order[End] {
		v.line++
		return v.findings, v.fail(fault.BundleIncomplete, "the bundle ends without its last line")
	}
	return v.findings, nil
}

func (v *verifier) fail(reason fault.Reason, format string, args ...any) error {
	return &Failure{Line: v.line, Reason: reason, Why: fmt.Sprintf(format, args...)}
}

// next verifies one line. Nothing but the line before it and the header counts
// for its place.
func (v *verifier) next(text []byte) error {
	var line Line
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&line); err != nil {
		return fmt.Errorf("%w: line %d: %w", ErrUnreadable, v.line, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: line %d: something follows its value", ErrUnreadable, v.line)
	}
	at := order[line.Kind]
	switch {
	case at == 0:
		return fmt.Errorf("%w: line %d: kind %q", ErrUnreadable, v.line, line.Kind)
	case v.line == 1 && (line.Kind != Begin || line.Version != version):
		return fmt.Errorf("%w: the first line names no version %d", ErrUnreadable, version)
	case at < v.stage, at == v.stage && line.Kind != Report && line.Kind != Membership && line.Kind != Word:
		return v.fail(fault.OrderViolation, "a %s does not come here", line.Kind)
	case at > order[Header] && v.header == nil && line.Kind != Instruction:
		return v.fail(fault.BundleIncomplete, "there is no manifest header: nothing can be held against it")
	}
	v.stage = at
	if line.Kind != End {
		v.sum.Write(text)
		v.sum.Write([]byte{'\n'})
	}
	switch line.Kind {
	case Begin:
		return v.begin(&line)
	case Membership:
		return v.membership(&line)
	case End:
		return v.end(&line)
	case Header, Report, Instruction, Result, Word:
	}
	if line.Envelope == nil {
		return v.fail(fault.BundleIncomplete, "a %s without its envelope", line.Kind)
	}
	switch line.Kind {
	case Header:
		return v.head(*line.Envelope)
	case Report:
		return v.report(*line.Envelope)
	case Instruction:
		return v.instruction(*line.Envelope)
	case Result:
		return v.keptReport(*line.Envelope)
	default:
		return v.word(&line)
	}
}

func (v *verifier) begin(line *Line) error {
	v.named = line.TaskID
	if v.expect.TaskID != "" && line.TaskID != v.expect.TaskID {
		return v.fail(fault.TaskMismatch, "the bundle is about task %s", line.TaskID)
	}
	return nil
}

// opened opens a document with the signer's keys of any time, then with those
// that were valid when it says it was signed: so a revoked key has its own code.
func opened[D any](v *verifier, env evidence.Envelope, signer string, open func(evidence.Envelope, []evidence.Key) (D, error), issued func(D) time.Time) (D, error) {
	d, err := open(env, v.trust.AllKeys(signer, identity.UseStatement))
	if err != nil {
		return d, v.refused(err, signer)
	}
	at := issued(d)
	if _, err := open(env, v.trust.Keys(signer, identity.UseStatement, at)); err != nil {
		return d, v.fail(fault.KeyNotValid, "the key of %s was revoked or out of its window at %s", signer, at.UTC().Format(time.RFC3339))
	}
	return d, nil
}

func (v *verifier) refused(err error, signer string) error {
	switch {
	case errors.Is(err, evidence.ErrDocumentType):
		return v.fail(fault.DocumentType, "the envelope holds another kind of document")
	case errors.Is(err, evidence.ErrSignature):
		return v.fail(fault.SignatureInvalid, "no key of %s in the trust store signed this", signer)
	case errors.Is(err, document.ErrUnknownField):
		return v.fail(fault.DocumentUnknownField, "the document has fields this version does not know")
	}
	return v.fail(fault.InvalidArgument, "the document can't be read: %s", err)
}

// head opens the header. Who signed it is what it states, held against the trust store.
func (v *verifier) head(env evidence.Envelope) error {
	source, err := v.source(env)
	if err != nil {
		return err
	}
	d, err := opened(v, env, source, document.OpenHeader, func(d *protocol.Header) time.Time { return d.IssuedAt })
	if err != nil {
		return err
	}
	if err := v.about(d.At, "header"); err != nil {
		return err
	}
	switch {
	case d.CanonID != canon.ID || d.KeyKind != protocol.KeyKindUUID:
		return v.fail(fault.FormatMismatch, "canonicalisation %q, keys %q", d.CanonID, d.KeyKind)
	case d.RowCount < 0 || d.PageCount < 0 || evidence.CheckPages(uint64(d.RowCount), d.PageRows, uint64(d.PageCount)) != nil,
		d.RowCount == 0 && d.Root != evidence.EmptyRoot():
		return v.fail(fault.ManifestIncomplete, "%d rows are not %d pages of %d", d.RowCount, d.PageCount, d.PageRows)
	}
	v.header = d
	v.findings.header(d)
	return nil
}

// source is the center that a header or an instruction states.
func (v *verifier) source(env evidence.Envelope) (string, error) {
	source, err := document.SourceOf(env)
	if err != nil {
		return "", v.refused(err, "the center")
	}
	if v.expect.Source != "" && source != v.expect.Source {
		return "", v.fail(fault.AudienceMismatch, "the document states %s as its center", source)
	}
	return source, nil
}

// about checks whom and what the first document is about.
func (v *verifier) about(at protocol.Coordinates, what string) error {
	switch {
	case at.TaskID != v.named:
		return v.fail(fault.TaskMismatch, "the %s is of task %s", what, at.TaskID)
	case at.Consumer == at.Source:
		return v.fail(fault.AudienceMismatch, "%s signed it for itself: that is no center's word", at.Source)
	case v.expect.Consumer != "" && at.Consumer != v.expect.Consumer:
		return v.fail(fault.AudienceMismatch, "the %s is for %s", what, at.Consumer)
	}
	return nil
}

// instructed takes what the instruction says of the manifest for its header.
func (v *verifier) instructed(d *protocol.Instruction) error {
	if err := v.about(d.At, "instruction"); err != nil {
		return err
	}
	if d.RowCount < 0 || d.RowCount == 0 && d.ManifestRoot != evidence.EmptyRoot() {
		return v.fail(fault.ManifestIncomplete, "%d rows don't have this root", d.RowCount)
	}
	v.headless = true
	v.header = &protocol.Header{
		At: d.At, ManifestID: d.ManifestID, Root: d.ManifestRoot, RowCount: d.RowCount, WindowStart: d.WindowStart, IssuedAt: d.IssuedAt,
		Scope: d.Scope, Key: d.Key, Mode: d.Mode, BreakerOverride: d.BreakerOverride,
	}
	v.findings.header(v.header)
	return nil
}

// same compares a document's coordinates with the header's.
func (v *verifier) same(at protocol.Coordinates) error {
	if code := document.Mismatch(at, v.header.At); code != "" {
		return v.fail(fault.Reason(code), "the coordinates are not the header's")
	}
	return nil
}

func (v *verifier) openReport(env evidence.Envelope) (*protocol.Report, error) {
	d, err := opened(v, env, v.header.At.Consumer, document.OpenReport, func(d *protocol.Report) time.Time { return d.IssuedAt })
	if err != nil {
		return nil, err
	}
	if err := v.same(d.At); err != nil {
		return nil, err
	}
	switch {
	case d.At.CenterEpoch != v.header.At.CenterEpoch:
		return nil, v.fail(fault.GrantEpochMismatch, "the center epoch is not the header's")
	case d.ManifestID != v.header.ManifestID || d.ManifestRoot != v.header.Root:
		return nil, v.fail(fault.ManifestMismatch, "the report is about another manifest")
	case !d.State.Terminal():
		return nil, v.fail(fault.ResultInconsistent, "the report states %s, which is no result", d.State)
	case min(d.CenterScanned, d.LocalScanned) < 0, d.CenterScanned > v.header.RowCount, d.State == protocol.Completed && (!d.CenterComplete || !d.LocalComplete || d.Open() != 0):
		return nil, v.fail(fault.ResultInconsistent, "the report contradicts itself")
	}
	if err := protocol.CheckCounts(d.Counts); err != nil {
		return nil, v.fail(fault.ResultInconsistent, "the report's counts: %s", err)
	}
	for _, c := range d.Counts {
		if c.Found != c.Repaired+c.Settled+c.Retired+c.Open() {
			return nil, v.fail(fault.ResultInconsistent, "the outcomes of %s do not add up", c.Class)
		}
	}
	return d, nil
}

func (v *verifier) report(env evidence.Envelope) error {
	d, err := v.openReport(env)
	if err != nil {
		return err
	}
	if d.Attempt <= v.attempt {
		return v.fail(fault.OrderViolation, "attempt %d comes after attempt %d", d.Attempt, v.attempt)
	}
	v.attempt, v.reports[d.Attempt] = d.Attempt, env
	v.findings.report(d)
	return nil
}

// keptReport is the consumer's own copy: the center stored the same bytes for
// the same attempt.
func (v *verifier) keptReport(env evidence.Envelope) error {
	d, err := v.openReport(env)
	if err != nil {
		return err
	}
	if stored, ok := v.reports[d.Attempt]; ok && !bytes.Equal(stored.Payload, env.Payload) {
		return v.fail(fault.ResultInconsistent, "the center stored another report of attempt %d", d.Attempt)
	}
	v.result = d
	return nil
}

func (v *verifier) instruction(env evidence.Envelope) error {
	source, err := v.source(env)
	if err != nil {
		return err
	}
	if v.header != nil {
		source = v.header.At.Source
	}
	d, err := opened(v, env, source, document.OpenInstruction, func(d *protocol.Instruction) time.Time { return d.IssuedAt })
	if err != nil {
		return err
	}
	if v.header == nil {
		if err := v.instructed(d); err != nil {
			return err
		}
	}
	if err := v.same(d.At); err != nil {
		return err
	}
	h := v.header
	switch {
	case d.ManifestID != h.ManifestID || d.ManifestRoot != h.Root || d.RowCount != h.RowCount || !d.WindowStart.Equal(h.WindowStart):
		return v.fail(fault.ManifestMismatch, "the instruction is about another manifest")
	case d.Scope != h.Scope || d.Key != h.Key || d.Mode != h.Mode || d.BreakerOverride != h.BreakerOverride:
		return v.fail(fault.ScopeMismatch, "the instruction asks for something else than the header")
	}
	v.findings.instruction(d)
	return nil
}

// membership holds a record's place against the signed root and size.
func (v *verifier) membership(line *Line) error {
	key, err := protocol.ParseKey(line.Key)
	if err != nil || (line.Included == nil) == (line.Absent == nil) {
		return fmt.Errorf("%w: line %d: a membership names a key and one place", ErrUnreadable, v.line)
	}
	if v.header.Scope == protocol.Record && line.Key != v.header.Key {
		return v.fail(fault.KeyMismatch, "the manifest is about record %s alone", v.header.Key)
	}
	size := uint64(v.header.RowCount) //nolint:gosec // the header was checked
	if line.Included != nil {
		n, err := line.Included.read()
		if err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrUnreadable, v.line, err)
		}
		if n.Row.Key != key {
			return v.fail(fault.KeyMismatch, "the row is of another record")
		}
		if !evidence.VerifyInclusion(evidence.LeafHash(&n.Row), n.Index, size, n.Path, v.header.Root) {
			return v.fail(fault.EvidenceNotProven, "the row does not lead into the signed root")
		}
		v.findings.included(line.Key, n)
		return nil
	}
	left, err := line.Absent.Left.read()
	right, rightErr := line.Absent.Right.read()
	if err := errors.Join(err, rightErr); err != nil {
		return fmt.Errorf("%w: line %d: %w", ErrUnreadable, v.line, err)
	}
	if err := (evidence.Absence{Size: size, Left: left, Right: right}).Verify(key, size, v.header.Root); err != nil {
		return v.fail(fault.EvidenceNotProven, "the absence of %s: %s", line.Key, err)
	}
	v.findings.absent(line.Key)
	return nil
}

func (v *verifier) end(line *Line) error {
	switch {
	case line.Lines != v.line-1:
		return v.fail(fault.BundleIncomplete, "%d lines were written, %d are here", line.Lines, v.line-1)
	case line.SHA256 != hex.EncodeToString(v.sum.Sum(nil)):
		return v.fail(fault.HashMismatch, "the lines are not those that were written")
	}
	return v.counts()
}
