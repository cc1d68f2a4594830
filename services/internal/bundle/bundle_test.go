package bundle_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/internal/bundle"
)

const (
	taskID     = "0190f5c27cde7a4f8a9b1c2d3e4f5061"
	otherTask  = "0190f5c27cde7a4f8a9b1c2d3e4f5099"
	manifestID = "0190f5c27cde7a4f8a9b1c2d3e4f50aa"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is a center and a consumer with their keys, and what they signed of a
// manifest of five rows in pages of two: rows 2 and 4 were repaired, an extra
// record was retired, one record could not be decided.
type world struct {
	t            *testing.T
	center, hall *evidence.Signer
	trust        []identity.TrustKey

	header      protocol.Header
	reportDoc   protocol.Report
	instruction protocol.Instruction
	snapshots   [2]protocol.Snapshot
	absence     protocol.Absence
	undecided   protocol.Undecidable
	rows        []evidence.Row
}

func key(n int) string { return fmt.Sprintf("%032x", n) }

func raw(n int) string {
	k, err := protocol.ParseKey(key(n))
	if err != nil {
		panic(err)
	}
	return k
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	w.center, w.hall = w.key("form-center"), w.key("svc-hall")
	content := []byte(`{"a":1}`)
	sum, err := canon.Sum(content)
	w.must(err)
	for n := 1; n <= 5; n++ {
		w.rows = append(w.rows, evidence.Row{Key: raw(10 * n), Revision: int64(n), Hash: sum})
	}
	at := protocol.Coordinates{Source: "form-center", Consumer: "svc-hall", TaskID: taskID, TenantID: 101, CollectionID: "enrolment", GrantEpoch: 1, CenterEpoch: 1}
	w.header = protocol.Header{
		At: at, ManifestID: manifestID, Scope: protocol.Collection, Mode: protocol.Repair, WindowStart: start, CanonID: canon.ID, KeyKind: "uuid",
		RowCount: 5, PageRows: 2, PageCount: 3, Root: evidence.Fold(w.pageRoots()), IssuedAt: start,
	}
	w.instruction = protocol.Instruction{
		At: at, Attempt: 1, Scope: protocol.Collection, Mode: protocol.Repair, WindowStart: start, ManifestID: manifestID,
		ManifestRoot: w.header.Root, RowCount: 5, IssuedAt: start,
	}
	w.reportDoc = protocol.Report{
		At: at, Attempt: 1, State: protocol.Partial, ManifestID: manifestID, ManifestRoot: w.header.Root, CenterScanned: 5, LocalScanned: 6,
		CenterComplete: true, LocalComplete: true, Verified: protocol.Hashes, IssuedAt: start.Add(time.Minute),
		Counts: []protocol.ClassCount{
			{Class: protocol.Stale, Found: 3, Repaired: 2, Reported: 1}, {Class: protocol.ExtraRow, Found: 1, Retired: 1},
		},
	}
	for i, n := range []int{20, 40} {
		w.snapshots[i] = protocol.Snapshot{
			At: at, Key: key(n), Revision: 7, Hash: sum, Content: content, Nonce: []byte("n"), EventID: "e", IssuedAt: start.Add(time.Second),
		}
	}
	w.absence = protocol.Absence{
		At: at, Key: key(45), ExpectedRevision: 1, Nonce: []byte("n"), ProofID: "p", IssuedAt: start.Add(time.Second), ManifestID: manifestID,
		ManifestRoot: w.header.Root, Evidence: w.prove(45),
	}
	w.undecided = protocol.Undecidable{At: at, Key: key(50), Nonce: []byte("n"), Code: "ROW_GONE", IssuedAt: start.Add(time.Second)}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// key makes an app's key, valid for an hour from the start.
func (w *world) key(appKey string) *evidence.Signer {
	w.t.Helper()
	made, err := identity.GenerateKeyFile(w.t.TempDir()+"/key", identity.KeyParams{
		AppKey: appKey, KeyID: appKey + "-1", Use: []identity.Use{identity.UseStatement}, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(time.Hour),
	})
	w.must(err)
	w.trust = append(w.trust, made.Public())
	signer, err := made.Signer()
	w.must(err)
	return signer
}

func (w *world) pageRoots() []evidence.Node {
	var roots []evidence.Node
	for page := range slices.Chunk(w.rows, 2) {
		leaves := make([]evidence.Node, len(page))
		for i := range page {
			leaves[i] = evidence.LeafHash(&page[i])
		}
		roots = append(roots, evidence.Fold(leaves))
	}
	return roots
}

// ref points at the row of a key.
func (w *world) ref(n int) *evidence.PageRef {
	i := n/10 - 1
	return &evidence.PageRef{PageNo: i / 2, Rows: w.rows[i/2*2 : min(i/2*2+2, 5)], Offset: i % 2}
}

// prove makes the evidence that the key is between 40 and 50.
func (w *world) prove(n int) evidence.Absence {
	w.t.Helper()
	a, err := evidence.ProveAbsence(raw(n), 5, 2, w.pageRoots(), w.ref(40), w.ref(50))
	w.must(err)
	return a
}

func sealed[D any](w *world, s *evidence.Signer, seal func(*evidence.Signer, D) (evidence.Envelope, error), d D) *evidence.Envelope {
	w.t.Helper()
	env, err := seal(s, d)
	w.must(err)
	return &env
}

// lines are the lines of a whole bundle.
func (w *world) lines() []bundle.Line {
	w.t.Helper()
	path, err := evidence.ProveInclusion(*w.ref(30), 5, 2, w.pageRoots())
	w.must(err)
	absent := w.prove(42)
	report := sealed(w, w.hall, document.SealReport, &w.reportDoc)
	return []bundle.Line{
		{Kind: bundle.Begin, Version: 1, TaskID: taskID},
		{Kind: bundle.Header, Envelope: sealed(w, w.center, document.SealHeader, &w.header)},
		{Kind: bundle.Report, Envelope: report},
		{Kind: bundle.Membership, Key: key(30), Included: bundle.NeighbourOf(&evidence.Neighbour{Row: w.rows[2], Index: 2, Path: path})},
		{Kind: bundle.Membership, Key: key(42), Absent: &bundle.Absent{Left: bundle.NeighbourOf(absent.Left), Right: bundle.NeighbourOf(absent.Right)}},
		{Kind: bundle.Instruction, Envelope: sealed(w, w.center, document.SealInstruction, &w.instruction)},
		{Kind: bundle.Result, Envelope: report},
		{Kind: bundle.Word, Key: key(20), Outcome: "REPAIRED", Envelope: sealed(w, w.center, document.SealSnapshot, &w.snapshots[0])},
		{Kind: bundle.Word, Key: key(40), Outcome: "REPAIRED", Envelope: sealed(w, w.center, document.SealSnapshot, &w.snapshots[1])},
		{Kind: bundle.Word, Key: key(45), Outcome: "RETIRED", Envelope: sealed(w, w.center, document.SealAbsence, &w.absence)},
		{Kind: bundle.Word, Key: key(50), Outcome: "REPORTED", Envelope: sealed(w, w.center, document.SealUndecidable, &w.undecided)},
	}
}

// Places of the lines.
const (
	atHeader, atReport, atIncluded, atAbsent, atInstruction, atResult, atWord, atSecond, atProof, atLast = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
)

// written is the bundle of lines, ended as its writer would.
func (w *world) written(lines []bundle.Line) []byte {
	w.t.Helper()
	var out bytes.Buffer
	to, err := bundle.NewWriter(&out, lines[0].TaskID)
	w.must(err)
	for _, line := range lines[1:] {
		w.must(to.Add(line))
	}
	w.must(to.Close())
	return out.Bytes()
}

func (w *world) verify(text []byte, expect bundle.Expect) (bundle.Findings, error) {
	w.t.Helper()
	trust, err := identity.NewTrust(w.trust...)
	w.must(err)
	return bundle.Verify(bytes.NewReader(text), trust, expect)
}

func TestAWholeBundle(t *testing.T) {
	w := setup(t)
	found, err := w.verify(w.written(w.lines()), bundle.Expect{TaskID: taskID, Source: "form-center", Consumer: "svc-hall"})
	if err != nil {
		t.Fatal(err)
	}
	proven := strings.Join(found.Proven, "\n")
	for _, want := range []string{
		"form-center signed at 2026-11-30T12:00:00Z that its rows of tenant 101, enrolment", "are 5 with the root", "attempt 1 ended PARTIAL",
		"record " + key(30) + " was among those rows: revision 3", "record " + key(42) + " was not among those rows",
		"2 current values, 1 absences and 1 refusals", "counts 2 repairs and 1 retirements", "the center stored the same report",
	} {
		if !strings.Contains(proven, want) {
			t.Errorf("%q is not in\n%s", want, proven)
		}
	}
	if found.TaskID != taskID || len(found.NotProven) == 0 {
		t.Errorf("found %+v", found)
	}
	t.Run("of the center alone", func(t *testing.T) {
		found, err := w.verify(w.written(w.lines()[:atInstruction]), bundle.Expect{})
		if err != nil || !strings.Contains(strings.Join(found.NotProven, "\n"), "the bundle has none of the consumer's words") {
			t.Errorf("%v, %v", found, err)
		}
	})
	t.Run("of the consumer alone", func(t *testing.T) {
		lines := slices.Delete(w.lines(), atHeader, atInstruction)
		found, err := w.verify(w.written(lines), bundle.Expect{TaskID: taskID, Source: "form-center", Consumer: "svc-hall"})
		if err != nil {
			t.Fatal(err)
		}
		proven, left := strings.Join(found.Proven, "\n"), strings.Join(found.NotProven, "\n")
		for _, want := range []string{"are 5 with the root", "be worked in mode REPAIR, attempt 1", "attempt 1 ended PARTIAL", "counts 2 repairs and 1 retirements"} {
			if !strings.Contains(proven, want) {
				t.Errorf("%q is not in\n%s", want, proven)
			}
		}
		for _, want := range []string{"the bundle is the consumer's and has no header", "that the center has the report of attempt 1"} {
			if !strings.Contains(left, want) {
				t.Errorf("%q is not in\n%s", want, left)
			}
		}
	})
	t.Run("of a purged key that is still in the trust store", func(t *testing.T) {
		w := setup(t)
		revoked := start.Add(30 * time.Minute) // after everything was signed
		w.trust[0].RevokedAt = &revoked
		if _, err := w.verify(w.written(w.lines()), bundle.Expect{}); err != nil {
			t.Error(err)
		}
	})
}

// TestTampering: whatever was changed is named, by its own code, at its line.
func TestTampering(t *testing.T) {
	// Before: what is signed differs. After: the signed lines are changed.
	for name, c := range map[string]struct {
		before func(w *world)
		after  func(w *world, lines []bundle.Line) []bundle.Line
		text   func(text []byte) []byte
		expect bundle.Expect
		line   int
		want   fault.Reason
	}{
		"a byte of a payload": {after: func(_ *world, l []bundle.Line) []bundle.Line { l[atWord].Envelope.Payload[9] ^= 1; return l }, line: 8, want: fault.SignatureInvalid},
		"a byte of a signature": {after: func(_ *world, l []bundle.Line) []bundle.Line {
			l[atHeader].Envelope.Signatures[0].Sig[3] ^= 1
			return l
		}, line: 2, want: fault.SignatureInvalid},
		"a byte beside an envelope": {text: func(text []byte) []byte { return bytes.Replace(text, []byte(`"REPORTED"`), []byte(`"DEFERRED"`), 1) }, line: 12, want: fault.HashMismatch},
		"the type of a document": {after: func(_ *world, l []bundle.Line) []bundle.Line {
			l[atReport].Envelope.PayloadType = document.TypeHeader
			return l
		}, line: 3, want: fault.DocumentType},
		"a word of another task":                {before: func(w *world) { w.snapshots[0].At.TaskID = otherTask }, line: 8, want: fault.TaskMismatch},
		"a report of another task":              {before: func(w *world) { w.reportDoc.At.TaskID = otherTask }, line: 3, want: fault.TaskMismatch},
		"a header of another task":              {before: func(w *world) { w.header.At.TaskID = otherTask }, line: 2, want: fault.TaskMismatch},
		"another task than was asked about":     {expect: bundle.Expect{TaskID: otherTask}, line: 1, want: fault.TaskMismatch},
		"another center than was asked about":   {expect: bundle.Expect{Source: "form-other"}, line: 2, want: fault.AudienceMismatch},
		"another consumer than was asked about": {expect: bundle.Expect{Consumer: "svc-other"}, line: 2, want: fault.AudienceMismatch},
		"a word of another tenant":              {before: func(w *world) { w.snapshots[0].At.TenantID = 102 }, line: 8, want: fault.TenantMismatch},
		"a report of another tenant":            {before: func(w *world) { w.reportDoc.At.TenantID = 102 }, line: 3, want: fault.TenantMismatch},
		"a word of another collection":          {before: func(w *world) { w.absence.At.CollectionID = "other" }, line: 10, want: fault.CollectionMismatch},
		"a word for another consumer":           {before: func(w *world) { w.undecided.At.Consumer = "svc-other" }, line: 11, want: fault.AudienceMismatch},
		"a word of another grant":               {before: func(w *world) { w.snapshots[1].At.GrantEpoch = 2 }, line: 9, want: fault.GrantEpochMismatch},
		"a word of an older center":             {before: func(w *world) { w.snapshots[1].At.CenterEpoch = 0 }, line: 9, want: fault.GrantEpochMismatch},
		"a word about another record":           {before: func(w *world) { w.snapshots[0].Key = key(21) }, line: 8, want: fault.KeyMismatch},
		"content that was exchanged":            {before: func(w *world) { w.snapshots[0].Content = []byte(`{"a":2}`) }, line: 8, want: fault.HashMismatch},
		"a report about another root":           {before: func(w *world) { w.reportDoc.ManifestRoot[0] ^= 1 }, line: 3, want: fault.ManifestMismatch},
		"an instruction about another root":     {before: func(w *world) { w.instruction.ManifestRoot[0] ^= 1 }, line: 6, want: fault.ManifestMismatch},
		"counts that cancel each other out": {before: func(w *world) {
			w.reportDoc.Counts = append(w.reportDoc.Counts,
				protocol.ClassCount{Class: protocol.LocalAhead, Found: 3, Reported: 3}, protocol.ClassCount{Class: protocol.RevisionZero, Found: -3, Reported: -3})
		}, line: 3, want: fault.ResultInconsistent},
		"a class that is counted twice": {before: func(w *world) {
			w.reportDoc.Counts = append(w.reportDoc.Counts, w.reportDoc.Counts[0], protocol.ClassCount{})
		}, line: 3, want: fault.ResultInconsistent},
		"a consumer that plays the center": {after: func(w *world, l []bundle.Line) []bundle.Line {
			w.header.At.Source = w.header.At.Consumer
			l[atHeader].Envelope = sealed(w, w.hall, document.SealHeader, &w.header)
			return l
		}, line: 2, want: fault.AudienceMismatch},
		"pages of no size":           {before: func(w *world) { w.header.PageRows, w.header.PageCount = 0, 0 }, line: 2, want: fault.ManifestIncomplete},
		"a proof about another root": {before: func(w *world) { w.absence.ManifestRoot[0] ^= 1 }, line: 10, want: fault.ManifestMismatch},
		"a proof of another size":    {before: func(w *world) { w.absence.Evidence.Size = 6 }, line: 10, want: fault.EvidenceNotProven},
		"a header with another root": {before: func(w *world) {
			w.header.Root[0] ^= 1
			w.reportDoc.ManifestRoot, w.instruction.ManifestRoot, w.absence.ManifestRoot = w.header.Root, w.header.Root, w.header.Root
		}, line: 4, want: fault.EvidenceNotProven},
		"a row's revision":                  {after: func(_ *world, l []bundle.Line) []bundle.Line { l[atIncluded].Included.Revision = 9; return l }, line: 4, want: fault.EvidenceNotProven},
		"a row for another record":          {after: func(_ *world, l []bundle.Line) []bundle.Line { l[atIncluded].Key = key(31); return l }, line: 4, want: fault.KeyMismatch},
		"an absence of a row that is there": {after: func(_ *world, l []bundle.Line) []bundle.Line { l[atAbsent].Key = key(40); return l }, line: 5, want: fault.EvidenceNotProven},
		"an absence with a gap": {after: func(w *world, l []bundle.Line) []bundle.Line {
			l[atAbsent].Absent.Left = l[atIncluded].Included
			return l
		}, line: 5, want: fault.EvidenceNotProven},
		"a key that nobody trusts": {after: func(w *world, l []bundle.Line) []bundle.Line {
			stranger := evidence.NewSigner("form-center-1", make([]byte, 64))
			l[atHeader].Envelope = sealed(w, stranger, document.SealHeader, &w.header)
			return l
		}, line: 2, want: fault.SignatureInvalid},
		"a report that the center signed": {after: func(w *world, l []bundle.Line) []bundle.Line {
			l[atReport].Envelope = sealed(w, w.center, document.SealReport, &w.reportDoc)
			return l
		}, line: 3, want: fault.SignatureInvalid},
		"a key that was revoked before":               {before: func(w *world) { before := start.Add(-time.Minute); w.trust[0].RevokedAt = &before }, line: 2, want: fault.KeyNotValid},
		"a key that had run out":                      {before: func(w *world) { w.reportDoc.IssuedAt = start.Add(2 * time.Hour) }, line: 3, want: fault.KeyNotValid},
		"a line cut out":                              {text: func(text []byte) []byte { return without(text, atAbsent) }, line: 11, want: fault.BundleIncomplete},
		"a repair cut out, and the end made anew":     {after: func(_ *world, l []bundle.Line) []bundle.Line { return slices.Delete(l, atSecond, atSecond+1) }, line: 11, want: fault.ResultInconsistent},
		"a retirement cut out, and the end made anew": {after: func(_ *world, l []bundle.Line) []bundle.Line { return slices.Delete(l, atProof, atProof+1) }, line: 11, want: fault.ResultInconsistent},
		"the header cut out, and the end made anew":   {after: func(_ *world, l []bundle.Line) []bundle.Line { return slices.Delete(l, atHeader, atHeader+1) }, line: 2, want: fault.BundleIncomplete},
		"the end cut off":                             {text: func(text []byte) []byte { return without(text, atLast+1) }, line: 12, want: fault.BundleIncomplete},
		"words in another order": {after: func(_ *world, l []bundle.Line) []bundle.Line {
			l[atWord], l[atSecond] = l[atSecond], l[atWord]
			return l
		}, line: 9, want: fault.OrderViolation},
		"a word twice":   {after: func(_ *world, l []bundle.Line) []bundle.Line { return slices.Insert(l, atSecond, l[atWord]) }, line: 9, want: fault.OrderViolation},
		"a report twice": {after: func(_ *world, l []bundle.Line) []bundle.Line { return slices.Insert(l, atReport, l[atReport]) }, line: 4, want: fault.OrderViolation},
		"a report after the words": {after: func(_ *world, l []bundle.Line) []bundle.Line {
			return append(slices.Delete(l, atReport, atReport+1), l[atReport])
		}, line: 0, want: fault.OrderViolation},
		"something after the end":          {text: func(text []byte) []byte { return append(text, bytes.SplitAfter(text, []byte("\n"))[atWord]...) }, line: 13, want: fault.OrderViolation},
		"a repair on a proof of absence":   {after: func(_ *world, l []bundle.Line) []bundle.Line { l[atProof].Outcome = "REPAIRED"; return l }, line: 10, want: fault.ResultInconsistent},
		"a report that hides a difference": {before: func(w *world) { w.reportDoc.Counts[0].Found = 2 }, line: 3, want: fault.ResultInconsistent},
		"a COMPLETED with something open":  {before: func(w *world) { w.reportDoc.State = protocol.Completed }, line: 3, want: fault.ResultInconsistent},
		"another report at the consumer": {after: func(w *world, l []bundle.Line) []bundle.Line {
			w.reportDoc.LocalScanned = 7
			l[atResult].Envelope = sealed(w, w.hall, document.SealReport, &w.reportDoc)
			return l
		}, line: 7, want: fault.ResultInconsistent},
		"an instruction to do more": {before: func(w *world) { w.instruction.BreakerOverride = true }, line: 6, want: fault.ScopeMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			if c.before != nil {
				c.before(w)
			}
			lines := w.lines()
			if c.after != nil {
				lines = c.after(w, lines)
			}
			text := w.written(lines)
			if c.text != nil {
				text = c.text(text)
			}
			_, err := w.verify(text, c.expect)
			failure := new(bundle.Failure)
			if !errors.As(err, &failure) || failure.Reason != c.want || c.line != 0 && failure.Line != c.line {
				t.Errorf("got %v, want %s at line %d", err, c.want, c.line)
			}
		})
	}
}

// TestTamperingWithTheConsumersPart: the instruction holds together what has no header.
func TestTamperingWithTheConsumersPart(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world)
		expect bundle.Expect
		line   int
		want   fault.Reason
	}{
		"another center than was asked about":   {expect: bundle.Expect{Source: "form-other"}, line: 2, want: fault.AudienceMismatch},
		"another consumer than was asked about": {expect: bundle.Expect{Consumer: "svc-other"}, line: 2, want: fault.AudienceMismatch},
		"an instruction of another task":        {before: func(w *world) { w.instruction.At.TaskID = otherTask }, line: 2, want: fault.TaskMismatch},
		"an instruction about another root":     {before: func(w *world) { w.instruction.ManifestRoot[0] ^= 1 }, line: 3, want: fault.ManifestMismatch},
		"an instruction with no rows":           {before: func(w *world) { w.instruction.RowCount = 0 }, line: 2, want: fault.ManifestIncomplete},
		"a proof of another size":               {before: func(w *world) { w.absence.Evidence.Size = 6 }, line: 6, want: fault.EvidenceNotProven},
		"a word of another tenant":              {before: func(w *world) { w.snapshots[0].At.TenantID = 102 }, line: 4, want: fault.TenantMismatch},
		"a repair that is counted twice":        {before: func(w *world) { w.reportDoc.Counts[0].Found, w.reportDoc.Counts[0].Repaired = 4, 3 }, line: 8, want: fault.ResultInconsistent},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			if c.before != nil {
				c.before(w)
			}
			_, err := w.verify(w.written(slices.Delete(w.lines(), atHeader, atInstruction)), c.expect)
			failure := new(bundle.Failure)
			if !errors.As(err, &failure) || failure.Reason != c.want || failure.Line != c.line {
				t.Errorf("got %v, want %s at line %d", err, c.want, c.line)
			}
		})
	}
}

// without cuts a line out and leaves the rest as it is.
func without(text []byte, line int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(slices.Delete(slices.Clone(lines), line, line+1), nil)
}

func TestWhatIsNoBundle(t *testing.T) {
	w := setup(t)
	whole := string(w.written(w.lines()))
	for name, text := range map[string]string{
		"text":             "hello\n",
		"another version":  strings.Replace(whole, `"version":1`, `"version":2`, 1),
		"no first line":    whole[strings.Index(whole, "\n")+1:],
		"an unknown kind":  strings.Replace(whole, `"kind":"instruction"`, `"kind":"hearsay"`, 1),
		"an unknown field": strings.Replace(whole, `"kind":"instruction"`, `"kind":"instruction","sure":true`, 1),
		"half a line":      whole[:len(whole)/2],
	} {
		if _, err := w.verify([]byte(text), bundle.Expect{}); !errors.Is(err, bundle.ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.verify(nil, bundle.Expect{}); err == nil {
		t.Error("an empty file holds")
	}
}

// TestTheFormat: another program can read and check the end line.
func TestTheFormat(t *testing.T) {
	w := setup(t)
	lines := bytes.SplitAfter(w.written(w.lines()), []byte("\n"))
	var end struct {
		Kind, SHA256 string
		Lines        int
	}
	w.must(json.Unmarshal(lines[11], &end))
	sum := sha256.Sum256(bytes.Join(lines[:11], nil))
	if end.Kind != "end" || end.Lines != 11 || end.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("the end is %+v", end)
	}
	if want := `{"kind":"bundle","version":1,"task_id":"` + taskID + `"}` + "\n"; string(lines[0]) != want {
		t.Errorf("the first line is %s", lines[0])
	}
}
