// Package schedule makes each business day's tasks.
//
// It promises one task a (business day, consumer, tenant, collection) however
// many centers run and whenever they come, and one catch-up after a downtime:
// for the latest due day. It never makes a task where one is open; it reports
// that it skipped it.
package schedule

import (
	"context"
	"fmt"
	"time"
	_ "time/tzdata" // the zones, where the system has none: an image holds the program alone

	"github.com/google/uuid"
	"github.com/robfig/cron/v3"
	"go.uber.org/zap"

	"lockstep.dev/services/center/internal/store"
)

// Plan says when a business day's run is due.
type Plan struct {
	cron cron.Schedule
	zone *time.Location
}

// Parse reads a cron expression with seconds ("0 0 2 * * *") in a time zone.
func Parse(expression, zone string) (Plan, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return Plan{}, fmt.Errorf("zone: %w", err)
	}
	parser := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	schedule, err := parser.Parse(expression)
	if err != nil {
		return Plan{}, fmt.Errorf("cron: %w", err)
	}
	return Plan{cron: schedule, zone: loc}, nil
}

const (
	// lookBack finds the last due day of plans down to a monthly one.
	lookBack = 32 * 24 * time.Hour
	// dateFormat is how a business day is written.
	dateFormat = "2006-01-02"
)

// Due is the latest business day whose time has come, "" for none. A plan that
// fires several times a day makes one run of them.
func (p Plan) Due(now time.Time) string {
	day := ""
	at := now.In(p.zone).Add(-lookBack)
	for at = p.cron.Next(at); !at.IsZero() && !at.After(now); at = p.cron.Next(endOfDay(at)) {
		day = at.Format(dateFormat)
	}
	return day
}

// endOfDay is the last instant of a day, so that each day costs one step.
func endOfDay(at time.Time) time.Time {
	y, m, d := at.Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, at.Location()).Add(-time.Nanosecond)
}

// Scheduler makes the tasks of the days that are due.
type Scheduler struct {
	Store    *store.Store
	Plan     Plan
	MaxTasks int // of one scan; the next one goes on with the same day
	Wake     func()
	NewID    func() uuid.UUID
	Log      *zap.Logger

	finished string // the last day known to be finished, so that a quiet scan writes nothing
}

// ScheduleOnce makes at most MaxTasks tasks of the latest due day. It asks the
// database what time it is. worked stays false: the cap is meant for one scan.
func (s *Scheduler) ScheduleOnce(ctx context.Context) (worked bool, err error) {
	now, err := s.Store.Now(ctx)
	if err != nil {
		return false, err
	}
	day := s.Plan.Due(now)
	if day == "" || day == s.finished {
		return false, nil
	}
	run, err := s.Store.ScheduleRun(ctx, day, s.MaxTasks, s.NewID)
	if err != nil {
		return false, fmt.Errorf("run the schedule of %s: %w", day, err)
	}
	if run.Already || run.Finished {
		s.finished = day
	}
	if run.Created > 0 {
		s.Wake()
	}
	if !run.Already {
		s.Log.Info("scheduled", zap.String("day", day), zap.Int("created", run.Created), zap.Int("skipped", run.Skipped), zap.Bool("finished", run.Finished))
	}
	return false, nil
}
