package schedule_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/schedule"
	"lockstep.dev/services/center/internal/store"
)

func TestDue(t *testing.T) {
	for _, c := range []struct{ cron, zone, now, want string }{
		{"0 0 2 * * *", "Asia/Shanghai", "2026-03-10T17:59:59Z", "2026-03-10"}, // 01:59 of the 11th there
		{"0 0 2 * * *", "Asia/Shanghai", "2026-03-10T18:00:00Z", "2026-03-11"},
		{"0 0 2 * * *", "UTC", "2026-03-10T01:59:59Z", "2026-03-09"},
		{"0 0 2 * * MON", "UTC", "2026-03-12T00:00:00Z", "2026-03-09"}, // the latest Monday
		{"0 0 2 1 * *", "UTC", "2026-03-20T00:00:00Z", "2026-03-01"},
		{"0 */5 * * * *", "UTC", "2026-03-10T00:02:00Z", "2026-03-10"},          // once a day all the same
		{"0 30 2 * * *", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28"}, // 02:30 does not exist on the 29th
		{"0 0 2 29 2 *", "UTC", "2026-03-10T00:00:00Z", ""},
	} {
		plan, err := schedule.Parse(c.cron, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Due(now); got != c.want {
			t.Errorf("%s in %s at %s: %q, want %q", c.cron, c.zone, c.now, got, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range [][2]string{{"0 2 * * *", "UTC"}, {"", "UTC"}, {"0 0 25 * * *", "UTC"}, {"0 0 2 * * *", "Mars/Olympus"}} {
		if _, err := schedule.Parse(c[0], c[1]); err == nil {
			t.Errorf("%q in %q was accepted", c[0], c[1])
		}
	}
}

type world struct{ *centertest.World }

func setup(t *testing.T) world {
	t.Helper()
	return world{centertest.New(t)}
}

// center is one replica's scheduler; every midnight is due.
func (w world) center(maxTasks int) *schedule.Scheduler {
	w.T.Helper()
	plan, err := schedule.Parse("0 0 0 * * *", "UTC")
	w.Must(err)
	return &schedule.Scheduler{
		Store: store.New(w.Connect()), Plan: plan, MaxTasks: maxTasks, Wake: func() {}, NewID: uuid.New, Log: zaptest.NewLogger(w.T),
	}
}

func (w world) once(s *schedule.Scheduler) {
	w.T.Helper()
	_, err := s.ScheduleOnce(w.T.Context())
	w.Must(err)
}

func (w world) grants(n int) {
	for i := range n {
		w.Grant(store.Scope{Consumer: centertest.Consumer, TenantID: 20, CollectionID: fmt.Sprintf("c%02d", i)})
	}
}

func (w world) tasks() int { return w.Int(`SELECT count(*) FROM lockstep.task`) }

func TestSchedule(t *testing.T) {
	t.Run("one_task_a_scope_and_day_however_often_it_comes", func(t *testing.T) {
		w := setup(t)
		w.grants(3)
		w.once(w.center(20))
		w.once(w.center(20))
		if w.tasks() != 4 {
			t.Errorf("%d tasks", w.tasks())
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.schedule_run WHERE finished_at IS NOT NULL AND created = 4 AND skipped = 0`); n != 1 {
			t.Error("the run is not finished with four tasks")
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.task WHERE created_by = 'schedule' AND business_day = (now() AT TIME ZONE 'UTC')::date`); n != 4 {
			t.Errorf("%d tasks of the day", n)
		}
	})
	t.Run("two_centers_at_once_make_one_set", func(t *testing.T) {
		w := setup(t)
		w.grants(9)
		centers := []*schedule.Scheduler{w.center(20), w.center(20), w.center(20)}
		var group sync.WaitGroup
		for _, c := range centers {
			group.Go(func() {
				if _, err := c.ScheduleOnce(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if w.tasks() != 10 {
			t.Errorf("%d tasks", w.tasks())
		}
	})
	t.Run("the_next_scan_goes_on_after_the_cap_least_recently_ended_first", func(t *testing.T) {
		w := setup(t)
		w.grants(3)
		recent := store.Scope{Consumer: centertest.Consumer, TenantID: 20, CollectionID: "c00"}
		w.Set(w.Running(recent), `state = 'PARTIAL', slot = NULL, lease_until = NULL, ended_at = now()`)
		s := w.center(3)
		w.once(s)
		if n := w.Int(`SELECT count(*) FROM lockstep.task WHERE business_day IS NOT NULL AND collection_id <> 'c00'`); n != 3 {
			t.Fatalf("%d tasks in the first scan", n)
		}
		w.once(s)
		if n := w.Int(`SELECT count(*) FROM lockstep.task WHERE business_day IS NOT NULL`); n != 4 {
			t.Errorf("%d tasks after the second scan", n)
		}
		if n := w.Int(`SELECT created FROM lockstep.schedule_run WHERE finished_at IS NOT NULL`); n != 4 {
			t.Errorf("the run says %d", n)
		}
	})
	t.Run("an_open_task_is_skipped_and_reported", func(t *testing.T) {
		w := setup(t)
		w.grants(1)
		w.Pending(centertest.Scope)
		w.once(w.center(20))
		if n := w.Int(`SELECT skipped FROM lockstep.schedule_run WHERE created = 1 AND finished_at IS NOT NULL`); n != 1 {
			t.Errorf("%d skipped", n)
		}
	})
	t.Run("a_revoked_subscription_gets_none", func(t *testing.T) {
		w := setup(t)
		w.Revoke(centertest.Scope)
		w.once(w.center(20))
		if w.tasks() != 0 {
			t.Errorf("%d tasks", w.tasks())
		}
	})
}
