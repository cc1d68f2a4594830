package dispatch_test

import (
	"context"
	"crypto/ed25519"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// consumer is a stand-in for one: it keeps what it got and answers as told.
type consumer struct {
	consumerv1.UnimplementedDispatchServiceServer
	keys   []evidence.Key
	mu     sync.Mutex
	got    []*protocol.Instruction
	answer func(*protocol.Instruction) (*consumerv1.DispatchResponse, error)
}

func (c *consumer) Dispatch(_ context.Context, req *consumerv1.DispatchRequest) (*consumerv1.DispatchResponse, error) {
	in, err := document.OpenInstruction(document.EnvelopeFromProto(req.GetInstruction()), c.keys)
	if err != nil {
		return nil, fault.ToStatus(fault.Wrap(err, fault.SignatureInvalid, "not signed by the center"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, in)
	return c.answer(in)
}

func accept(in *protocol.Instruction) (*consumerv1.DispatchResponse, error) {
	return &consumerv1.DispatchResponse{TaskId: in.At.TaskID, WantedAttempt: int32(in.Attempt), Acceptance: consumerv1.Acceptance_ACCEPTANCE_NEW}, nil
}

type world struct {
	*centertest.World
	d        *dispatch.Dispatcher
	consumer *consumer
}

func setup(t *testing.T) *world {
	t.Helper()
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("c", 32)))
	public, _ := private.Public().(ed25519.PublicKey)
	w := &world{World: centertest.New(t), consumer: &consumer{keys: []evidence.Key{{ID: "center-1", Public: public}}, answer: accept}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.Must(err)
	server := grpc.NewServer()
	consumerv1.RegisterDispatchServiceServer(server, w.consumer)
	go server.Serve(listener) //nolint:errcheck // it ends when the test stops it
	t.Cleanup(server.Stop)
	w.d = w.dispatcher("dispatcher-1", map[string]string{centertest.Consumer: listener.Addr().String()})
	w.d.Signer = evidence.NewSigner("center-1", private)
	return w
}

func (w *world) dispatcher(name string, addresses map[string]string) *dispatch.Dispatcher {
	targets := dispatch.NewTargets(addresses, func(_, address string) (*grpc.ClientConn, error) {
		return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	})
	w.T.Cleanup(func() { w.Must(targets.Close()) })
	return &dispatch.Dispatcher{
		Store: w.Store, Source: centertest.Center, Targets: targets, Policy: centertest.Policy, Timeout: 5 * time.Second,
		Worker: name, Log: zaptest.NewLogger(w.T), Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
		Signer: evidence.NewSigner("center-1", ed25519.NewKeyFromSeed([]byte(strings.Repeat("c", 32)))),
	}
}

func (w *world) once() bool {
	w.T.Helper()
	worked, err := w.d.DispatchOnce(w.T.Context())
	w.Must(err)
	return worked
}

// dueIn is how many seconds from now the task is due, rounded.
func (w *world) dueIn(id uuid.UUID) int {
	return w.Int(`SELECT round(extract(epoch FROM due_at - now()))::int FROM lockstep.task WHERE task_id = $1`, id)
}

func TestDispatch(t *testing.T) {
	t.Run("an_accepted_instruction_is_dispatched_and_says_what_the_task_is", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		if !w.once() {
			t.Fatal("nothing was dispatched")
		}
		w.WantState(id, "DISPATCHED")
		tk := w.Read(id)
		if tk.Attempt != 1 || tk.Slot == nil || *tk.Slot != 1 || tk.Claimed() || tk.LeaseUntil.IsZero() {
			t.Errorf("attempt %d, slot %v, claimed %t, lease %s", tk.Attempt, tk.Slot, tk.Claimed(), tk.LeaseUntil)
		}
		in := w.consumer.got[0]
		if in.At != tk.Coordinates(centertest.Center) || in.Attempt != 1 || in.ManifestRoot != centertest.Root ||
			in.ManifestID != protocol.FormatID(tk.ManifestID) || !in.WindowStart.Equal(tk.WindowStart) || in.RowCount != 3 || in.Mode != protocol.Repair {
			t.Errorf("the instruction is %+v", in)
		}
		if w.once() {
			t.Error("it was dispatched twice")
		}
		if got := strings.Join(w.Strings(`SELECT event || ' ' || state FROM lockstep.task_event ORDER BY event_id`), ", "); got != "DISPATCHER_TAKES QUEUED, ACCEPTED DISPATCHED" {
			t.Errorf("the events are %s", got)
		}
	})
	t.Run("a_refusal_spends_the_attempt_and_backs_off_until_the_budget_is_spent", func(t *testing.T) {
		w := setup(t)
		w.consumer.answer = func(*protocol.Instruction) (*consumerv1.DispatchResponse, error) {
			return nil, fault.ToStatus(fault.New(fault.AudienceMismatch, "not for me"))
		}
		id := w.Ready(centertest.Scope)
		for attempt, wait := range []int{60, 120} {
			w.once()
			w.WantState(id, "QUEUED AUDIENCE_MISMATCH")
			if tk := w.Read(id); tk.Attempt != attempt+1 || tk.Slot != nil || w.dueIn(id) != wait {
				t.Fatalf("attempt %d, slot %v, due in %d s, want %d", tk.Attempt, tk.Slot, w.dueIn(id), wait)
			}
			if w.once() {
				t.Fatal("it was dispatched before it was due")
			}
			w.Set(id, `due_at = now()`)
		}
		w.once()
		w.WantState(id, "FAILED DISPATCH_FAILED")
	})
	t.Run("a_consumer_nobody_registered_keeps_its_name_to_the_end", func(t *testing.T) {
		w := setup(t)
		w.d = w.dispatcher("dispatcher-1", nil)
		id := w.Ready(centertest.Scope)
		for range 2 {
			w.once()
			w.WantState(id, "QUEUED TARGET_NOT_REGISTERED")
			w.Set(id, `due_at = now()`)
		}
		w.once()
		w.WantState(id, "FAILED TARGET_NOT_REGISTERED")
	})
	t.Run("an_unreachable_consumer_backs_off", func(t *testing.T) {
		w := setup(t)
		w.d = w.dispatcher("dispatcher-1", map[string]string{centertest.Consumer: "127.0.0.1:1"})
		id := w.Ready(centertest.Scope)
		w.once()
		w.WantState(id, "QUEUED UNAVAILABLE")
	})
	t.Run("an_answer_about_another_task_is_none", func(t *testing.T) {
		w := setup(t)
		w.consumer.answer = func(in *protocol.Instruction) (*consumerv1.DispatchResponse, error) {
			return &consumerv1.DispatchResponse{TaskId: strings.Repeat("0", 32), WantedAttempt: int32(in.Attempt)}, nil
		}
		id := w.Ready(centertest.Scope)
		w.once()
		w.WantState(id, "QUEUED TASK_MISMATCH")
	})
	t.Run("a_report_that_overtakes_the_answer_wins", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		w.consumer.answer = func(in *protocol.Instruction) (*consumerv1.DispatchResponse, error) {
			err := w.Store.InTx(context.Background(), func(tx *store.Tx) error {
				tk, err := tx.LockTask(context.Background(), id)
				if err != nil {
					return err
				}
				return tx.Move(context.Background(), tk, store.Move{Event: task.Progressed, To: protocol.Running, Lease: time.Minute})
			})
			if err != nil {
				return nil, err
			}
			return accept(in)
		}
		w.once()
		w.WantState(id, "RUNNING")
	})
	t.Run("a_task_whose_grant_was_lost_is_cancelled_and_never_sent", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		w.Revoke(centertest.Scope)
		if w.once() {
			t.Error("something was dispatched")
		}
		w.WantState(id, "CANCELLED GRANT_REVOKED")
		if len(w.consumer.got) != 0 {
			t.Error("an instruction was sent")
		}
	})
}

func TestSlots(t *testing.T) {
	second := centertest.Scope
	second.CollectionID = "form-2"
	t.Run("one_collection_at_a_time_and_a_record_beside_it", func(t *testing.T) {
		w := setup(t)
		w.Grant(second)
		first := w.Ready(centertest.Scope)
		w.once()
		other, record := w.Ready(second), w.ReadyRecord(second, centertest.Key)
		if !w.once() || w.once() {
			t.Error("not exactly one more was dispatched")
		}
		w.WantState(first, "DISPATCHED")
		w.WantState(record, "DISPATCHED")
		w.WantState(other, "QUEUED")
		if tk := w.Read(record); *tk.Slot != 0 {
			t.Errorf("the record has slot %d", *tk.Slot)
		}
		w.Must(w.Store.Cancel(t.Context(), first, "", "test"))
		if !w.once() {
			t.Error("the free slot was not used")
		}
		w.WantState(other, "DISPATCHED")
	})
	t.Run("two_dispatchers_at_once_fill_it_once", func(t *testing.T) {
		w := setup(t)
		w.Exec(`DROP INDEX lockstep.task_ahead`) // so that both can be ready
		for _, collection := range []string{"a", "b", "c", "d", "e", "f"} {
			sc := store.Scope{Consumer: centertest.Consumer, TenantID: centertest.Tenant, CollectionID: collection}
			w.Grant(sc)
			w.Ready(sc)
		}
		for round := range 20 {
			held := make(chan int, 2)
			for range 2 {
				go func() {
					n := 0
					_, _, ok, err := w.Store.ClaimDispatch(context.Background(), "racer", centertest.Policy)
					if err != nil {
						t.Error(err)
					}
					if ok {
						n = 1
					}
					held <- n
				}()
			}
			if n := <-held + <-held; n != 1 {
				t.Fatalf("round %d: %d dispatchers have a task in one slot", round, n)
			}
			if n := w.Int(`SELECT count(*) FROM lockstep.task WHERE slot IS NOT NULL`); n != 1 {
				t.Fatalf("round %d: %d slots in use", round, n)
			}
			w.Exec(`UPDATE lockstep.task SET slot = NULL, attempt = 0, claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL`)
		}
	})
}

// TestRevocationRacesAClaim: a claim waits for a revocation that came first,
// and then sees it.
func TestRevocationRacesAClaim(t *testing.T) {
	w := setup(t)
	id := w.Ready(centertest.Scope)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	revoker, err := w.Connect().Begin(ctx)
	w.Must(err)
	_, err = revoker.Exec(ctx, `UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
	w.Must(err)
	worked := make(chan bool)
	go func() {
		ok, err := w.d.DispatchOnce(ctx)
		if err != nil {
			t.Error(err)
		}
		worked <- ok
	}()
	w.Blocked(ctx)
	w.Must(revoker.Commit(ctx))
	if <-worked {
		t.Error("a revoked task was dispatched")
	}
	w.WantState(id, "CANCELLED GRANT_REVOKED")
}

func TestALapsedClaimIsFenced(t *testing.T) {
	w := setup(t)
	id := w.Ready(centertest.Scope)
	old, _, ok, err := w.Store.ClaimDispatch(t.Context(), "old", centertest.Policy)
	if err != nil || !ok {
		t.Fatalf("claim: %t, %v", ok, err)
	}
	w.Set(id, `lease_until = now() - interval '1 second'`)
	n, err := w.Store.SweepClaims(t.Context(), store.DispatchSite, task.ClaimLapsed, centertest.Policy, 10)
	if err != nil || n != 1 {
		t.Fatalf("swept %d, %v", n, err)
	}
	if !w.once() {
		t.Fatal("it was not dispatched again")
	}
	if tk := w.Read(id); tk.Attempt != 2 {
		t.Errorf("attempt %d", tk.Attempt)
	}
	err = w.Store.ConcludeDispatch(t.Context(), old, func(*task.Task) (store.Move, bool) {
		return store.Move{Event: task.NotAccepted, To: protocol.Queued}, true
	})
	if err != claim.ErrFenced { //nolint:errorlint // it comes as it is
		t.Errorf("the old dispatcher got %v", err)
	}
	w.WantState(id, "DISPATCHED")
}
