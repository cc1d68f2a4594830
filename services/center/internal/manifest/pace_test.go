package manifest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/load"
)

// guarded is a world whose source says itself whether it is busy.
func guarded(t *testing.T) *evidencetest.World {
	t.Helper()
	w := parted(t, 2, byRanges)
	w.Exec(manyAnswers, 1, 300)
	w.Exec(`CREATE TABLE public.busy AS SELECT false AS state`)
	var err error
	w.Materialiser.Guard, err = load.Open(t.Context(), w.Store.Pool(), load.Config{Query: `SELECT state FROM public.busy`, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// awaitWaiting returns once the task says that it waits for code.
func awaitWaiting(t *testing.T, w *evidencetest.World, id uuid.UUID, code string) {
	t.Helper()
	for w.Read(id).WaitingCode != code {
		if t.Context().Err() != nil {
			t.Fatal("the task never said so")
		}
	}
}

func TestGuard(t *testing.T) {
	t.Run("nothing is begun while the source is busy", func(t *testing.T) {
		w := guarded(t)
		id := w.Task()
		w.Exec(`UPDATE public.busy SET state = true`)
		for worked := true; worked; { // the last look holds for a moment
			var err error
			if worked, err = w.Materialiser.MaterialiseOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if w.Read(id).ManifestState == task.ManifestComplete {
				end(w)
				id = w.Task()
			}
		}
		if tk := w.Read(id); tk.WaitingCode != string(fault.LoadGuard) || tk.Claimed() || tk.State != protocol.Queued {
			t.Errorf("task %+v", tk)
		}
		w.Exec(`UPDATE public.busy SET state = false`)
		for worked := false; !worked; {
			var err error
			if worked, err = w.Materialiser.MaterialiseOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if tk := w.Read(id); tk.WaitingCode != "" || tk.ManifestState != task.ManifestComplete {
			t.Errorf("task %+v", tk)
		}
	})
	t.Run("a read pauses and goes on in its snapshot", func(t *testing.T) {
		w := guarded(t)
		id := w.Task()
		resumed := make(chan struct{})
		manifest.Counted(w.Materialiser, func() {
			w.Exec(`UPDATE public.busy SET state = true`)
			for w.Materialiser.Guard.Busy(t.Context()) == "" && t.Context().Err() == nil {
			}
			go func() {
				defer close(resumed)
				awaitWaiting(t, w, id, string(fault.LoadGuard))
				w.Exec(`DELETE FROM answers.answer`)
				w.Exec(`UPDATE public.busy SET state = false`)
			}()
		})
		tk := w.Materialise(id)
		<-resumed
		if tk.ManifestState != task.ManifestComplete || tk.RowCount != 300 || tk.WaitingCode != "" {
			t.Errorf("task %+v", tk)
		}
	})
	t.Run("a read that would hold its snapshot for too long is given up, and begun again", func(t *testing.T) {
		w := guarded(t)
		manifest.MayPause(w.Materialiser, 200*time.Millisecond)
		id := w.Task()
		manifest.Counted(w.Materialiser, func() {
			w.Exec(`UPDATE public.busy SET state = true`)
			for w.Materialiser.Guard.Busy(t.Context()) == "" && t.Context().Err() == nil {
			}
		})
		tk := w.Materialise(id)
		if tk.State != protocol.Queued || tk.Claimed() || tk.MaterialiseTries != 0 || tk.WaitingCode != string(fault.LoadGuard) || !tk.DueAt.After(time.Now()) {
			t.Errorf("task %+v", tk)
		}
		if n := w.Int(`SELECT (SELECT count(*) FROM lockstep.manifest) + (SELECT count(*) FROM lockstep.manifest_page)`); n != 0 {
			t.Errorf("%d rows are left over", n)
		}
	})
}

// The setting says how many readers there may be, not how many there are.
func TestAPauseIsSharedByTheReadersAtWork(t *testing.T) {
	m := &manifest.Materialiser{Readers: 4}
	for atWork, want := range map[int]time.Duration{1: time.Second, 2: 500 * time.Millisecond, 4: 250 * time.Millisecond} {
		if got := manifest.Paused(m, atWork, time.Second); got != want {
			t.Errorf("%d at work: a second counts %s, want %s", atWork, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	t.Run("a read keeps to it and says so", func(t *testing.T) {
		w := parted(t, 2, byRanges)
		w.Exec(manyAnswers, 1, 3000)
		w.Materialiser.Rate = load.NewRate(2000)
		id := w.Task()
		started, told := time.Now(), make(chan struct{})
		go func() {
			defer close(told)
			awaitWaiting(t, w, id, string(fault.RateLimited))
		}()
		tk := w.Materialise(id)
		<-told
		// 3 000 rows less the burst of 1 000, in portions of 128.
		if took := time.Since(started); took < 900*time.Millisecond {
			t.Errorf("3000 rows took %s", took)
		}
		if tk.ManifestState != task.ManifestComplete || tk.RowCount != 3000 || tk.WaitingCode != "" {
			t.Errorf("task %+v", tk)
		}
	})
	t.Run("a long read waits for another one, and no try is spent", func(t *testing.T) {
		w := parted(t, 2, byRanges)
		w.Exec(manyAnswers, 1, 2100)
		w.Materialiser.Rate = load.NewRate(100)
		done, err := manifest.TakeTurn(w.Materialiser, 2100)
		if err != nil {
			t.Fatal(err)
		}
		id := w.Task()
		tk := w.Materialise(id)
		if tk.State != protocol.Queued || tk.Claimed() || tk.MaterialiseTries != 0 || tk.WaitingCode != string(fault.RateLimited) || !tk.DueAt.After(time.Now()) {
			t.Errorf("task %+v", tk)
		}
		if _, err := manifest.TakeTurn(w.Materialiser, 2000); err != nil {
			t.Errorf("a short read: %v", err)
		}
		done()
		if _, err := manifest.TakeTurn(w.Materialiser, 2100); err != nil {
			t.Errorf("the next long read: %v", err)
		}
	})
	t.Run("a set that would take too long is refused", func(t *testing.T) {
		m := &manifest.Materialiser{Rate: load.NewRate(100)}
		if err := manifest.TooSlow(m, 61_000); err != nil {
			t.Error(err)
		}
		var refused *fault.Error
		if err := manifest.TooSlow(m, 61_001); !errors.As(err, &refused) || refused.Reason != fault.ResourceLimit {
			t.Errorf("got %v", err)
		}
	})
}
