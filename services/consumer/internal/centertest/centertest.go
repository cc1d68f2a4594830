// Package centertest is a center for tests: it holds records in memory, freezes
// manifests of them, signs real documents and answers over a real socket. It
// tells the truth unless it is told to misbehave. Tests only.
package centertest

import (
	"context"
	"crypto/ed25519"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/center"
)

// The parties and the one scope of a test.
const (
	App        = "center"
	Consumer   = "hall"
	Tenant     = int64(7)
	Collection = "form-1"
	GrantEpoch = int64(3)
	PageRows   = 4
)

// Record is a record's current value.
type Record struct {
	Revision int64
	Content  string // JSON; "" for SQL NULL
	Deleted  bool
}

// Hash of the record's content; all zeros where it has none.
func (r Record) Hash() canon.Hash {
	var content []byte
	if r.Content != "" {
		content = []byte(r.Content)
	}
	h, err := canon.Sum(content)
	if err != nil {
		return canon.Hash{}
	}
	return h
}

// Row is the record as the tree has it.
func (r Record) Row(raw string) evidence.Row {
	return evidence.Row{Key: raw, Revision: r.Revision, Hash: r.Hash(), Deleted: r.Deleted}
}

// Task is a task with its frozen manifest.
type Task struct {
	ID         string
	ManifestID string
	Mode       protocol.Mode
	Scope      protocol.Scope
	Key        string
	Window     time.Time
	Override   bool
	Attempt    int
	State      protocol.State
	Code       string
	Own        protocol.State // first stored result
	rows       []evidence.PageRow
	roots      []evidence.Node
}

// Lies are what a center may be told to do wrong; nil ones do nothing.
type Lies struct {
	// Call fails or observes a call by its method's name before it is answered.
	Call    func(ctx context.Context, method string) error
	Header  func(*protocol.Header)
	Signed  func(*evidence.Envelope) // the header's envelope
	Index   func(*centerv1.ListPageIndexResponse)
	Pages   func(*centerv1.GetPagesResponse)
	Rows    func(*centerv1.ListRowsResponse)
	Word    func(word any) // *protocol.Snapshot, *protocol.Absence or *protocol.Undecidable, before it is signed
	Answer  func(*evidence.Envelope)
	Records func(*centerv1.GetRecordsResponse)
	Ack     func(*protocol.Report, *centerv1.ReportResultResponse) error
	// Signer signs instead of the center's own key.
	Signer *evidence.Signer
}

// Center is the fake.
type Center struct {
	centerv1.UnimplementedReconcileServiceServer

	signer *evidence.Signer
	// ConsumerKeys verify reports.
	ConsumerKeys []evidence.Key
	// Keys verify what the center signs.
	Keys []evidence.Key
	// Address it listens on; Conn is a client's connection to it.
	Address string
	Conn    *grpc.ClientConn

	mu   sync.Mutex
	lies Lies
	// truthfulHeader keeps a lying signer from headers.
	truthfulHeader bool
	centerEpoch    int64
	grantEpoch     int64
	revoked        fault.Reason
	records        map[string]Record
	undecidable    map[string]fault.Reason
	tasks          map[string]*Task
	reports        []*protocol.Report
	calls          map[string]int
	asked          []string
	recordsBatch   int
}

// New starts a center with a key of its own; it ends with the test.
func New(t testing.TB, consumerKeys ...evidence.Key) *Center {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return Start(t, evidence.NewSigner("center-1", private), evidence.Key{ID: "center-1", Public: public}, consumerKeys...)
}

// Start starts a center that signs with a given key.
func Start(t testing.TB, signer *evidence.Signer, key evidence.Key, consumerKeys ...evidence.Key) *Center {
	t.Helper()
	c := &Center{
		signer: signer, Keys: []evidence.Key{key},
		ConsumerKeys: consumerKeys, centerEpoch: 1, grantEpoch: GrantEpoch,
		records: map[string]Record{}, undecidable: map[string]fault.Reason{}, tasks: map[string]*Task{}, calls: map[string]int{},
		recordsBatch: recordsBatch,
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Address = listener.Addr().String()
	server := grpc.NewServer(grpc.UnaryInterceptor(c.intercept))
	centerv1.RegisterReconcileServiceServer(server, c)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	c.Conn, err = grpc.NewClient(c.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(center.Stats{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
	})
	return c
}

func (c *Center) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	c.mu.Lock()
	c.calls[method]++
	call := c.lies.Call
	c.mu.Unlock()
	if call != nil {
		if err := call(ctx, method); err != nil {
			return nil, fault.ToStatus(err)
		}
	}
	resp, err := handler(ctx, req)
	return resp, fault.ToStatus(err)
}

// Lie makes the center misbehave from now on.
func (c *Center) Lie(l Lies) { c.with(func() { c.lies = l }) }

func (c *Center) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Put writes a record.
func (c *Center) Put(raw string, r Record) { c.with(func() { c.records[raw] = r }) }

// Drop removes a record without a tombstone.
func (c *Center) Drop(raw string) { c.with(func() { delete(c.records, raw) }) }

// Decline makes the center state nothing about a key.
func (c *Center) Decline(raw string, code fault.Reason) { c.with(func() { c.undecidable[raw] = code }) }

// Revoke ends the grant: every call but reports is refused with the code, and tasks are cancelled.
func (c *Center) Revoke(code fault.Reason) { c.with(func() { c.revoked = code }) }

// SetCenterEpoch is what an operator does after a restore.
func (c *Center) SetCenterEpoch(e int64) { c.with(func() { c.centerEpoch = e }) }

// SetGrantEpoch moves the grant without cancelling anything.
func (c *Center) SetGrantEpoch(e int64) { c.with(func() { c.grantEpoch = e }) }

// AnswerAtMost says how many records one call answers.
func (c *Center) AnswerAtMost(n int) { c.with(func() { c.recordsBatch = n }) }

// Calls counts the calls of a method.
func (c *Center) Calls(method string) (n int) {
	c.with(func() { n = c.calls[method] })
	return n
}

// Asked lists the raw keys that were asked for, in order.
func (c *Center) Asked() (keys []string) {
	c.with(func() { keys = slices.Clone(c.asked) })
	return keys
}

// Reports lists the reports received.
func (c *Center) Reports() (out []*protocol.Report) {
	c.with(func() { out = slices.Clone(c.reports) })
	return out
}

// Last is the last report that is not RUNNING, nil if there is none.
func (c *Center) Last() *protocol.Report {
	reports := c.Reports()
	for i := len(reports) - 1; i >= 0; i-- {
		if reports[i].State != protocol.Running {
			return reports[i]
		}
	}
	return nil
}

// End ends a task at the center.
func (c *Center) End(t *Task, s protocol.State, code fault.Reason) {
	c.with(func() { t.State, t.Code = s, string(code) })
}

// EndAll ends every task.
func (c *Center) EndAll(s protocol.State, code fault.Reason) {
	c.with(func() {
		for _, t := range c.tasks {
			t.State, t.Code = s, string(code)
		}
	})
}

// Option changes a new task.
type Option func(*Task)

// DryRun makes a task that only looks.
func DryRun(t *Task) { t.Mode = protocol.DryRun }

// Override lets a task retire however many rows.
func Override(t *Task) { t.Override = true }

// OfRecord makes a task of one record.
func OfRecord(raw string) Option {
	return func(t *Task) { t.Scope, t.Key = protocol.Record, protocol.FormatKey(raw) }
}

// Task freezes a manifest of the records as they are now.
func (c *Center) Task(options ...Option) *Task {
	t := &Task{
		ID: protocol.FormatID(uuid.New()), ManifestID: protocol.FormatID(uuid.New()),
		Mode: protocol.Repair, Scope: protocol.Collection, Attempt: 1, State: protocol.Dispatched,
		Window: time.Now().UTC().Truncate(time.Microsecond),
	}
	for _, o := range options {
		o(t)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for raw, r := range c.records {
		if t.Key == "" || t.Key == protocol.FormatKey(raw) {
			t.rows = append(t.rows, evidence.PageRow{Row: r.Row(raw), SchemaVersion: 1})
		}
	}
	slices.SortFunc(t.rows, func(a, b evidence.PageRow) int { return strings.Compare(a.Key, b.Key) })
	for page := range slices.Chunk(t.rows, PageRows) {
		t.roots = append(t.roots, evidence.PageRowsRoot(page))
	}
	c.tasks[t.ID] = t
	return t
}

// Root of the task's manifest.
func (t *Task) Root() evidence.Node {
	if len(t.roots) == 0 {
		return evidence.EmptyRoot()
	}
	return evidence.Fold(t.roots)
}

func (c *Center) at(t *Task) protocol.Coordinates {
	return protocol.Coordinates{
		Source: App, Consumer: Consumer, TaskID: t.ID, TenantID: Tenant, CollectionID: Collection,
		GrantEpoch: GrantEpoch, CenterEpoch: 1,
	}
}

// Instruction of an attempt.
func (c *Center) Instruction(t *Task, attempt int) *protocol.Instruction {
	return &protocol.Instruction{
		At: c.at(t), Attempt: attempt, Scope: t.Scope, Key: t.Key, Mode: t.Mode, WindowStart: t.Window,
		ManifestID: t.ManifestID, ManifestRoot: t.Root(), RowCount: int64(len(t.rows)), IssuedAt: t.Window,
		BreakerOverride: t.Override,
	}
}

// Seal signs an instruction as the center.
func (c *Center) Seal(t testing.TB, in *protocol.Instruction) evidence.Envelope {
	t.Helper()
	env, err := document.SealInstruction(c.signer, in)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// Redispatch makes an attempt the center's newest.
func (c *Center) Redispatch(t *Task, attempt int) {
	c.with(func() { t.Attempt, t.State = attempt, protocol.Dispatched })
}

func (c *Center) sign() *evidence.Signer {
	if c.lies.Signer != nil {
		return c.lies.Signer
	}
	return c.signer
}

// task checks what every call checks.
func (c *Center) task(id string) (*Task, error) {
	t, ok := c.tasks[id]
	switch {
	case !ok:
		return nil, fault.New(fault.TaskNotFound, "no such task")
	case t.State.Terminal():
		return nil, fault.New(fault.TaskTerminal, "ended").With("task_state", string(t.State)).With("code", t.Code)
	case c.revoked != "":
		t.State, t.Code = protocol.Cancelled, string(c.revoked)
		return nil, fault.New(c.revoked, "cancelled")
	}
	return t, nil
}

// Signer signs as this center, for another one to be accused of.
func (c *Center) Signer() *evidence.Signer { return c.signer }

// LieAfterHeader limits the lying signer to what comes after the header.
func (c *Center) LieAfterHeader() { c.with(func() { c.truthfulHeader = true }) }

// Flip changes a signed payload.
func Flip(env *evidence.Envelope) {
	env.Payload = slices.Clone(env.Payload)
	env.Payload[len(env.Payload)/2] ^= 1
}

// Retype passes a document off as a report.
func Retype(env *evidence.Envelope) { env.PayloadType = document.TypeReport }

// Unknown adds a field that no version knows, and signs again as this center.
func (c *Center) Unknown(env *evidence.Envelope) {
	payload := append(slices.Clone(env.Payload), 0xfa, 0x3f, 0x01, 'x') // field 1023
	*env = c.signer.Sign(env.PayloadType, payload)
}

// Forget empties the center's records, calls and reports.
func (c *Center) Forget() {
	c.with(func() {
		clear(c.records)
		clear(c.calls)
		c.reports, c.asked = nil, nil
	})
}
