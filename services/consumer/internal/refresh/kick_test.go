package refresh

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

func kickSettings() KickSettings {
	set := Defaults().Kick
	set.Stages = map[string]Stage{"sums": {Enabled: true, Grey: 100}}
	return set
}

// idsOf gives n task ids of one grey bucket.
func idsOf(n, grey int) []uuid.UUID {
	var ids []uuid.UUID
	for i := uint32(0); len(ids) < n; i++ {
		id := uuid.UUID{0: byte(i >> 24), 1: byte(i >> 16), 2: byte(i >> 8), 3: byte(i)}
		if Grey("sums", id) == grey {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestKickSwitches(t *testing.T) {
	id := idsOf(1, 42)[0]
	for name, test := range map[string]struct {
		change func(*KickSettings)
		want   Verdict
	}{
		"all_on":             {func(*KickSettings) {}, KickQueued},
		"master_off":         {func(s *KickSettings) { s.Enabled = false }, KickOff},
		"admission_off":      {func(s *KickSettings) { s.Admission = false }, KickOff},
		"stage_off":          {func(s *KickSettings) { s.Stages["sums"] = Stage{Grey: 100} }, KickOff},
		"stage_not_named":    {func(s *KickSettings) { s.Stages = nil }, KickOff},
		"grey_0":             {func(s *KickSettings) { s.Stages["sums"] = Stage{Enabled: true} }, KickGrey},
		"just_outside":       {func(s *KickSettings) { s.Stages["sums"] = Stage{Enabled: true, Grey: 42} }, KickGrey},
		"just_inside":        {func(s *KickSettings) { s.Stages["sums"] = Stage{Enabled: true, Grey: 43} }, KickQueued},
		"without_any_queues": {func(s *KickSettings) { s.Queue = 0 }, QueueFull},
	} {
		t.Run(name, func(t *testing.T) {
			set := kickSettings()
			test.change(&set)
			if got := NewKicker(set, nil).Offer("sums", id); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if off := Defaults().Kick; !off.Enabled || !off.Admission || off.Stages["sums"].Enabled {
		t.Errorf("by default the switches are on and every stage is off: %+v", off)
	}
}

func TestKickIsBoundedAndMergesEqualTasks(t *testing.T) {
	k := NewKicker(kickSettings(), nil) // nobody works
	ids := idsOf(65, 7)
	for _, id := range ids[:64] {
		if got := k.Offer("sums", id); got != KickQueued {
			t.Fatalf("got %s, want QUEUED", got)
		}
	}
	if got := k.Offer("sums", ids[3]); got != KickMerged {
		t.Errorf("an equal task gives %s, want MERGED", got)
	}
	if got := k.Offer("sums", ids[64]); got != BucketFull {
		t.Errorf("the 65th task of a bucket gives %s, want BUCKET_FULL", got)
	}
	set := kickSettings()
	set.Queue = 3
	k = NewKicker(set, nil)
	for grey, want := range []Verdict{KickQueued, KickQueued, KickQueued, QueueFull} {
		if got := k.Offer("sums", idsOf(1, grey)[0]); got != want {
			t.Errorf("bucket %d gives %s, want %s", grey, got, want)
		}
	}
	if got := k.Offer("sums", idsOf(2, 0)[1]); got != KickQueued {
		t.Errorf("another task of a bucket that waits gives %s, want QUEUED", got)
	}
}

func TestKickNeverRunsInTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		k := NewKicker(kickSettings(), func(context.Context, string, uuid.UUID) { ran++ })
		k.Offer("sums", idsOf(1, 0)[0])
		synctest.Wait()
		if ran != 0 {
			t.Error("it ran without a worker")
		}
	})
}

func TestKickGivesOneTailToATaskThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		k := NewKicker(kickSettings(), func(context.Context, string, uuid.UUID) {
			runs++
			time.Sleep(time.Minute)
		})
		ctx, stop := context.WithCancel(t.Context())
		go k.Run(ctx)
		id := idsOf(1, 0)[0]
		k.Offer("sums", id)
		synctest.Wait()
		for range 5 {
			if got := k.Offer("sums", id); got != KickTail {
				t.Errorf("got %s, want TAIL", got)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if runs != 2 {
			t.Errorf("ran %d times, want 2: once, and once more for all that came meanwhile", runs)
		}
		if got := k.Offer("sums", id); got != KickQueued {
			t.Errorf("afterwards it is %s, want QUEUED", got)
		}
		time.Sleep(time.Hour)
		stop()
		synctest.Wait()
	})
}

func TestKickRoundBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := kickSettings()
		set.Workers = 1
		var order []int
		k := NewKicker(set, func(_ context.Context, stage string, id uuid.UUID) {
			order = append(order, Grey(stage, id))
			time.Sleep(3 * time.Second) // two fit into a round: the budget does not cut the second one
		})
		for _, id := range idsOf(5, 1) {
			k.Offer("sums", id)
		}
		for _, id := range idsOf(1, 2) {
			k.Offer("sums", id)
		}
		ctx, stop := context.WithCancel(t.Context())
		go k.Run(ctx)
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []int{1, 1, 2, 1, 1, 1}
		if len(order) != len(want) {
			t.Fatalf("ran %v, want %v", order, want)
		}
		for i := range want {
			if order[i] != want[i] {
				t.Fatalf("ran %v, want %v", order, want)
			}
		}
		stop()
		synctest.Wait()
	})
}

func TestKickWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		count := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			running += by
			most = max(most, running)
		}
		done := make(chan int, 10)
		k := NewKicker(kickSettings(), func(context.Context, string, uuid.UUID) {
			count(1)
			time.Sleep(time.Second)
			count(-1)
			done <- 1
		})
		for grey := range 6 {
			k.Offer("sums", idsOf(1, grey)[0])
		}
		ctx, stop := context.WithCancel(t.Context())
		go k.Run(ctx)
		for range 6 {
			<-done
		}
		if most != 2 {
			t.Errorf("%d ran at once, want 2", most)
		}
		stop()
		synctest.Wait()
	})
}
