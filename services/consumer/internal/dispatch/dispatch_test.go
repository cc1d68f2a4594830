package dispatch_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/dispatch"
	"lockstep.dev/services/consumer/internal/store"
)

type world struct {
	t      *testing.T
	pool   *pgxpool.Pool
	center *centertest.Center
	server *dispatch.Server
	kicks  int
}

func setup(t *testing.T) *world {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Consumer(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{t: t, pool: pool, center: centertest.New(t)}
	w.center.Put("0123456789abcdef", centertest.Record{Revision: 1})
	w.server = &dispatch.Server{
		Self: centertest.Consumer, Source: centertest.App, SourceKeys: func() []evidence.Key { return w.center.Keys },
		Store: store.New(pool, pool, store.Settings{Lease: time.Minute}), Kick: func() { w.kicks++ }, Log: zap.NewNop(),
	}
	return w
}

func (w *world) send(peer string, env evidence.Envelope) (*consumerv1.DispatchResponse, error) {
	ctx := identity.WithPeer(w.t.Context(), peer)
	return w.server.Dispatch(ctx, &consumerv1.DispatchRequest{Instruction: document.EnvelopeToProto(env)})
}

func (w *world) rows() (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), `SELECT count(*) FROM lockstep.work`).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func TestDispatch(t *testing.T) {
	w := setup(t)
	task := w.center.Task()
	for i, c := range []struct {
		attempt int
		want    consumerv1.Acceptance
		wanted  int32
	}{
		{2, consumerv1.Acceptance_ACCEPTANCE_NEW, 2},
		{2, consumerv1.Acceptance_ACCEPTANCE_DUPLICATE, 2},
		{1, consumerv1.Acceptance_ACCEPTANCE_DUPLICATE, 2},
		{5, consumerv1.Acceptance_ACCEPTANCE_NEWER, 5},
	} {
		resp, err := w.send(centertest.App, w.center.Seal(t, w.center.Instruction(task, c.attempt)))
		if err != nil || resp.GetAcceptance() != c.want || resp.GetWantedAttempt() != c.wanted || resp.GetTaskId() != task.ID {
			t.Errorf("instruction %d: %v, %v", i, resp, err)
		}
	}
	if w.kicks != 4 || w.rows() != 1 {
		t.Errorf("%d kicks, %d rows", w.kicks, w.rows())
	}
}

// A refused instruction leaves nothing behind.
func TestRefusals(t *testing.T) {
	w := setup(t)
	other := centertest.New(t)
	task := w.center.Task()
	change := func(f func(*protocol.Instruction)) func() evidence.Envelope {
		return func() evidence.Envelope {
			in := w.center.Instruction(task, 1)
			f(in)
			return w.center.Seal(t, in)
		}
	}
	sealed := func(f func(*evidence.Envelope)) func() evidence.Envelope {
		return func() evidence.Envelope {
			env := w.center.Seal(t, w.center.Instruction(task, 1))
			f(&env)
			return env
		}
	}
	for name, c := range map[string]struct {
		env  func() evidence.Envelope
		code fault.Reason
	}{
		"signed by another key": {func() evidence.Envelope { return other.Seal(t, w.center.Instruction(task, 1)) }, fault.SignatureInvalid},
		"tampered with":         {sealed(centertest.Flip), fault.SignatureInvalid},
		"of another type":       {sealed(centertest.Retype), fault.DocumentType},
		"with an unknown field": {sealed(w.center.Unknown), fault.DocumentUnknownField},
		"not there at all":      {func() evidence.Envelope { return evidence.Envelope{} }, fault.DocumentType},
		"from another source":   {change(func(in *protocol.Instruction) { in.At.Source = "other" }), fault.AudienceMismatch},
		"signed as the consumer": {
			change(func(in *protocol.Instruction) { in.At.Source = centertest.Consumer }), fault.AudienceMismatch,
		},
		"for another consumer": {change(func(in *protocol.Instruction) { in.At.Consumer = "other" }), fault.AudienceMismatch},
		"without a task":       {change(func(in *protocol.Instruction) { in.At.TaskID = "" }), fault.InvalidArgument},
		"with a task id in another spelling": {
			change(func(in *protocol.Instruction) { in.At.TaskID = uuid.NewString() }), fault.InvalidArgument,
		},
		"without a manifest":               {change(func(in *protocol.Instruction) { in.ManifestID = "" }), fault.InvalidArgument},
		"without a root":                   {change(func(in *protocol.Instruction) { in.ManifestRoot = evidence.Node{} }), fault.InvalidArgument},
		"without a collection":             {change(func(in *protocol.Instruction) { in.At.CollectionID = "" }), fault.InvalidArgument},
		"without a grant":                  {change(func(in *protocol.Instruction) { in.At.GrantEpoch = 0 }), fault.InvalidArgument},
		"of attempt 0":                     {change(func(in *protocol.Instruction) { in.Attempt = 0 }), fault.InvalidArgument},
		"of an attempt beyond all reason":  {change(func(in *protocol.Instruction) { in.Attempt = 1 << 30 }), fault.InvalidArgument},
		"without a window":                 {change(func(in *protocol.Instruction) { in.WindowStart = time.Time{} }), fault.InvalidArgument},
		"with a negative row count":        {change(func(in *protocol.Instruction) { in.RowCount = -1 }), fault.InvalidArgument},
		"of all collections":               {change(func(in *protocol.Instruction) { in.Scope = protocol.All }), fault.InvalidArgument},
		"of a collection, naming a record": {change(func(in *protocol.Instruction) { in.Key = protocol.FormatKey("0123456789abcdef") }), fault.InvalidArgument},
		"of a record, naming none":         {change(func(in *protocol.Instruction) { in.Scope = protocol.Record }), fault.InvalidArgument},
		"of a record in another spelling": {change(func(in *protocol.Instruction) {
			in.Scope, in.Key = protocol.Record, uuid.NewString()
		}), fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.send(centertest.App, c.env()); fault.ReasonOf(err) != c.code {
				t.Errorf("%v, want %s", err, c.code)
			}
		})
	}
	good := w.center.Seal(t, w.center.Instruction(task, 1))
	t.Run("of a caller who is not the source", func(t *testing.T) {
		for _, peer := range []string{"", "other", centertest.Consumer} {
			if _, err := w.send(peer, good); fault.ReasonOf(err) != fault.PermissionDenied {
				t.Errorf("%q: %v", peer, err)
			}
		}
	})
	t.Run("of anybody, where no source is configured", func(t *testing.T) {
		w.server.Source = ""
		for _, peer := range []string{"", centertest.App} {
			if _, err := w.send(peer, good); fault.ReasonOf(err) != fault.PermissionDenied {
				t.Errorf("%q: %v", peer, err)
			}
		}
	})
	if w.rows() != 0 || w.kicks != 0 {
		t.Errorf("%d rows, %d kicks", w.rows(), w.kicks)
	}
}

func TestAKnownTaskIsNotToldAnotherStory(t *testing.T) {
	w := setup(t)
	task := w.center.Task()
	if _, err := w.send(centertest.App, w.center.Seal(t, w.center.Instruction(task, 1))); err != nil {
		t.Fatal(err)
	}
	in := w.center.Instruction(task, 2)
	in.ManifestRoot[0]++
	if _, err := w.send(centertest.App, w.center.Seal(t, in)); fault.ReasonOf(err) != fault.ManifestMismatch {
		t.Error(err)
	}
}
