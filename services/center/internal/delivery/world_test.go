package delivery_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/delivery"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
)

var policy = store.DeliveryPolicy{ClaimLease: time.Minute, MaxAttempts: 3, BackoffBase: time.Minute, BackoffCap: time.Hour}

// mapping of the example's answers and their outbox.
var mapping = dataset.Config{
	Name: "answers", Table: "answers.answer", KeyKind: protocol.KeyKindUUID,
	Columns: dataset.Columns{
		Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
		SchemaVersion: "version", Sequence: "seq_no", Content: "values",
	},
	Outbox: dataset.Outbox{Table: "answers.answer_outbox", ID: "id", XID: "xid", Tenant: "tenant_id", Collection: "form_id", Key: "answer_id"},
}

// consumer is a stand-in for one: it keeps what it got and answers as told.
type consumer struct {
	consumerv1.UnimplementedDispatchServiceServer
	keys   []evidence.Key
	mu     sync.Mutex
	got    []*protocol.Snapshot
	answer func(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error)
}

func (c *consumer) DeliverSnapshot(_ context.Context, req *consumerv1.DeliverSnapshotRequest) (*consumerv1.DeliverSnapshotResponse, error) {
	s, err := document.OpenSnapshot(document.EnvelopeFromProto(req.GetSnapshot()), c.keys)
	if err != nil {
		return nil, fault.ToStatus(fault.Wrap(err, fault.SignatureInvalid, "not signed by the center"))
	}
	if req.GetTenantId() != s.At.TenantID || req.GetCollectionId() != s.At.CollectionID || req.GetKey() != s.Key {
		return nil, fault.ToStatus(fault.New(fault.KeyMismatch, "the call names another record"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, s)
	outcome, err := c.answer(s)
	return &consumerv1.DeliverSnapshotResponse{Outcome: outcome, EventId: s.EventID}, fault.ToStatus(err)
}

func applied(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error) {
	return consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_APPLIED, nil
}

func refused(code fault.Reason) func(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error) {
	return func(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error) { return 0, fault.New(code, "refused") }
}

type world struct {
	*centertest.World
	reader   *delivery.Reader
	sender   *delivery.Sender
	sweeper  *delivery.Sweeper
	consumer *consumer
	registry *prometheus.Registry
	woken    int
}

func setup(t *testing.T) *world {
	t.Helper()
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("c", 32)))
	public, _ := private.Public().(ed25519.PublicKey)
	w := &world{World: centertest.New(t), consumer: &consumer{keys: []evidence.Key{{ID: "center-1", Public: public}}, answer: applied}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.Must(err)
	server := grpc.NewServer()
	consumerv1.RegisterDispatchServiceServer(server, w.consumer)
	go server.Serve(listener) //nolint:errcheck // it ends when the test stops it
	t.Cleanup(server.Stop)
	targets := dispatch.NewTargets(map[string]string{centertest.Consumer: listener.Addr().String()}, func(_, address string) (*grpc.ClientConn, error) {
		return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	})
	t.Cleanup(func() { w.Must(targets.Close()) })
	table, err := dataset.Resolve(t.Context(), w.Pool, mapping, dataset.Center)
	w.Must(err)
	log := zaptest.NewLogger(t)
	src, err := source.Open(t.Context(), w.Pool, table, log)
	w.Must(err)
	w.registry = prometheus.NewRegistry()
	metrics, err := delivery.NewMetrics(w.registry)
	w.Must(err)
	wake := func() { w.woken++ }
	w.reader = &delivery.Reader{Store: w.Store, Source: src, Metrics: metrics, Wake: wake, Log: log}
	w.sender = &delivery.Sender{
		Store: w.Store, Source: src, AppKey: centertest.Center, Signer: evidence.NewSigner("center-1", private), Targets: targets, Policy: policy,
		Timeout: 5 * time.Second, Worker: "sender-1", Metrics: metrics, Log: log,
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, NewID: uuid.New,
	}
	w.sweeper = &delivery.Sweeper{Store: w.Store, Policy: policy, Retention: time.Hour, Wake: wake, Log: log}
	return w
}

// key of answer n.
func key(n int) string { return fmt.Sprintf("%032x", n) }

const insertAnswer = `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values") VALUES (7, $1::text::uuid, $2, 1, 1, 1, '{"a": 1.50}')`

// answer makes answer n of the granted form at revision 1.
func (w *world) answer(n int) { w.Exec(insertAnswer, key(n), centertest.Collection) }

// change raises the first answer's revision.
func (w *world) change() {
	w.Exec(`UPDATE answers.answer SET revision = revision + 1, "values" = jsonb_build_object('a', revision) WHERE answer_id = $1::text::uuid`, key(1))
}

// read takes the outbox to its end.
func (w *world) read() {
	w.T.Helper()
	for worked := true; worked; {
		var err error
		worked, err = w.reader.ReadOnce(w.T.Context())
		w.Must(err)
	}
}

// send sends until nothing is due, and gives how many attempts that took.
func (w *world) send() (attempts int) {
	w.T.Helper()
	for {
		worked, err := w.sender.SendOnce(w.T.Context())
		w.Must(err)
		if !worked {
			return attempts
		}
		attempts++
	}
}

// queue is every delivery as "key state attempts code outcome", by key.
func (w *world) queue() []string {
	return w.Strings(`SELECT rtrim(ltrim(encode(record_key, 'hex'), '0') || ' ' || state || ' ' || attempts || ' ' || code || ' ' || outcome)
		FROM lockstep.delivery ORDER BY consumer, record_key`)
}

func (w *world) wantQueue(want ...string) {
	w.T.Helper()
	if got := w.queue(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.T.Errorf("the queue holds %q, want %q", got, want)
	}
}

// sent is every snapshot that reached the consumer as "key revision".
func (w *world) sent() (out []string) {
	for _, s := range w.consumer.got {
		out = append(out, fmt.Sprintf("%s %d", strings.TrimLeft(s.Key, "0"), s.Revision))
	}
	return out
}

func (w *world) wantSent(want ...string) {
	w.T.Helper()
	if got := w.sent(); strings.Join(got, ",") != strings.Join(want, ",") {
		w.T.Errorf("sent %q, want %q", got, want)
	}
}

// counted is how many attempts ended so.
func (w *world) counted(labels ...string) (n float64) {
	w.T.Helper()
	families, err := w.registry.Gather()
	w.Must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			slices.Sort(values)
			slices.Sort(labels)
			if slices.Equal(values, labels) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// due makes everything that waits due.
func (w *world) due() { w.Exec(`UPDATE lockstep.delivery SET due_at = now() WHERE state = 'PENDING'`) }
