// Package dev starts a whole Lockstep on this machine: a private PostgreSQL (or
// databases that are given), the example's data, damaged as planned, throwaway
// keys, and both services as real processes.
//
// It promises to leave nothing behind: Stop ends what Start began and removes
// what it made, and if this process is killed its children end with it. It is
// for the demo and for development; nothing it makes is fit for production.
package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lockstep.dev/pkg/pglocal"
	"lockstep.dev/services/internal/process"
	"lockstep.dev/services/lockstep/internal/store"
	"lockstep.dev/services/lockstep/internal/world"
)

// The app keys of the two services.
const (
	CenterApp   = "demo-center"
	ConsumerApp = "demo-hall"
)

// The seed of the example; one is enough, for it makes runs comparable.
const seed = 20261130

// Options say what to start.
type Options struct {
	Rows int
	// Dir is the stack's own folder; "" makes one. It is removed at the end unless Keep.
	Dir  string
	Keep bool
	// CenterDSN and ConsumerDSN are databases to use, both or neither.
	CenterDSN   string
	ConsumerDSN string
	// Example replaces the demo's data; nil for that.
	Example *Example
	// Params are settings of the private PostgreSQL, beyond those of one that is thrown away.
	Params map[string]string
	// Statements loads pg_stat_statements, where there is one.
	Statements bool
	// Note hears what is being done.
	Note func(format string, args ...any)
	Now  func() time.Time
}

// Example is data to start with, and what the services have to know of it.
type Example struct {
	Fill   func(ctx context.Context, center, consumer store.Pool) error
	Grants []Grant
	// Center and Consumer are settings in place of the stack's own, by their first names.
	Center, Consumer map[string]any
}

// Grant lets the consumer read and subscribe to a collection.
type Grant struct {
	TenantID   int64
	Collection string
}

// Validate says what is wrong before anything is started.
func (o *Options) Validate() error {
	if o.Example == nil {
		if err := world.CheckRows(o.Rows); err != nil {
			return err
		}
	}
	if (o.CenterDSN == "") != (o.ConsumerDSN == "") {
		return errors.New("give both --center-dsn and --consumer-dsn, or neither")
	}
	if o.CenterDSN != "" && o.CenterDSN == o.ConsumerDSN {
		return errors.New("the two services need two databases")
	}
	return nil
}

// Stack is everything that runs.
type Stack struct {
	Dir         string
	CenterDSN   string
	ConsumerDSN string
	CenterAt    process.Addresses
	ConsumerAt  process.Addresses
	Token       string // an admin's, on both services
	Changes     *world.Changes
	// CenterConfig and ConsumerConfig are the services' configuration files.
	CenterConfig   string
	ConsumerConfig string

	options  Options
	reach    *Reach // nil: it was started here
	world    *world.World
	center   *process.Process
	consumer *process.Process
	undo     []func() error // in order of doing; run backwards
}

// Start starts everything. Whatever fails, nothing is left behind.
func Start(ctx context.Context, options Options) (*Stack, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	s := &Stack{options: options}
	if err := s.start(ctx); err != nil {
		if stopErr := s.Stop(); stopErr != nil {
			options.Note("cleaning up: %v", stopErr)
		}
		return nil, err
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) error {
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	if s.options.Example == nil {
		if err := s.demo(); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{s.makeDir, s.databases, s.fill} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := s.services(ctx, programs); err != nil {
		return err
	}
	if err := s.subscribe(ctx); err != nil {
		return errors.Join(err, s.Died())
	}
	return nil
}

// demo makes the demo's data the stack's.
func (s *Stack) demo() error {
	made, err := world.New(s.options.Rows, seed)
	if err != nil {
		return err
	}
	s.world = made
	example := &Example{Fill: s.load, Center: settings{
		"max_rows":  max(defaultMaxRows, made.MostRows()),
		"max_pages": max(defaultMaxPages, made.MostRows()/pageSize+1),
	}}
	for _, form := range world.Forms() {
		example.Grants = append(example.Grants, Grant{form.TenantID, form.Collection})
	}
	s.options.Example = example
	return nil
}

type programs struct{ center, consumer string }

func findPrograms() (programs, error) {
	center, err := FindService("center")
	if err != nil {
		return programs{}, err
	}
	consumer, err := FindService("consumer")
	return programs{center, consumer}, err
}

// makeDir makes the stack's folder. The server of PostgreSQL may run as another
// user, who has to pass through it to its own folder inside.
func (s *Stack) makeDir(context.Context) error {
	dir := s.options.Dir
	if dir == "" {
		made, err := os.MkdirTemp("", "lockstep-demo-")
		if err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		dir = made
	} else if err := makeEmpty(dir); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	s.Dir = dir
	s.options.Note("folder: %s", dir)
	if !s.options.Keep {
		s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	}
	const passable = 0o711
	if err := os.Chmod(dir, passable); err != nil {
		return fmt.Errorf("open the folder for PostgreSQL: %w", err)
	}
	return nil
}

func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // see makeDir
		return fmt.Errorf("make a folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty; name a new folder", dir)
	}
	return nil
}

// databases finds or starts PostgreSQL and gives it the tables.
func (s *Stack) databases(ctx context.Context) error {
	s.CenterDSN, s.ConsumerDSN = s.options.CenterDSN, s.options.ConsumerDSN
	if s.CenterDSN == "" {
		if err := s.startPostgres(ctx); err != nil {
			return err
		}
	} else if err := s.borrow(ctx); err != nil {
		return err
	}
	if err := store.MigrateCenter(ctx, s.CenterDSN); err != nil {
		return fmt.Errorf("make the center's tables: %w", err)
	}
	if err := store.MigrateConsumer(ctx, s.ConsumerDSN); err != nil {
		return fmt.Errorf("make the consumer's tables: %w", err)
	}
	return nil
}

func (s *Stack) startPostgres(ctx context.Context) error {
	binDir, err := newFinder(s.Dir, s.options.Note).programs(ctx)
	if err != nil {
		return err
	}
	options := pglocal.Options{Dir: filepath.Join(s.Dir, "postgres"), BinDir: binDir, TCP: true}
	if !s.options.Keep {
		// Nothing of it outlives this run, so nothing has to reach the disk.
		options.Params = map[string]string{"fsync": "off", "full_page_writes": "off"}
	}
	options.Params = merged(options.Params, s.options.Params)
	if s.options.Statements && hasLibrary(binDir, "pg_stat_statements") {
		options.Params["shared_preload_libraries"] = "pg_stat_statements"
	}
	cluster, err := pglocal.Start(ctx, options)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() error {
		if s.options.Keep {
			return cluster.Stop()
		}
		return cluster.StopImmediate()
	})
	for _, name := range []string{"center", "consumer"} {
		if err := cluster.CreateDatabase(ctx, name); err != nil {
			return err
		}
	}
	s.CenterDSN, s.ConsumerDSN = cluster.TCPDSN("center"), cluster.TCPDSN("consumer")
	return nil
}

// borrow makes sure that the given databases hold nothing of ours, so that
// taking our tables away at the end takes nothing of anybody's.
func (s *Stack) borrow(ctx context.Context) error {
	for _, dsn := range []string{s.CenterDSN, s.ConsumerDSN} {
		pool, err := store.Open(ctx, dsn)
		if err != nil {
			return err
		}
		used, err := pool.Used(ctx)
		pool.Close()
		if err != nil {
			return err
		}
		if used != "" {
			return fmt.Errorf("a given database already has the schemas %s; give one without them", used)
		}
		if s.options.Keep {
			continue
		}
		s.undo = append(s.undo, func() error { return dropTables(context.WithoutCancel(ctx), dsn) })
	}
	return nil
}

const dropTimeout = 10 * time.Second

func dropTables(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, dropTimeout)
	defer cancel()
	pool, err := store.Open(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pool.Drop(ctx)
}

// fill loads the example.
func (s *Stack) fill(ctx context.Context) error {
	center, consumer, err := s.Pools(ctx)
	if err != nil {
		return err
	}
	defer center.Close()
	defer consumer.Close()
	return s.options.Example.Fill(ctx, center, consumer)
}

// load fills both sides with equal rows, then damages the projection.
func (s *Stack) load(ctx context.Context, center, consumer store.Pool) error {
	now := s.options.Now()
	s.options.Note("data: %d answers in %d forms of 2 tenants, and their projection", s.options.Rows, len(world.Forms()))
	if err := center.FillCenter(ctx, world.Forms(), s.world.Answers()); err != nil {
		return err
	}
	if err := consumer.FillProjection(ctx, s.world.Projection(), now); err != nil {
		return err
	}
	changes, err := s.world.Damage()
	if err != nil {
		return err
	}
	s.Changes = changes
	if err := center.ChangeCenter(ctx, s.Changes.Center); err != nil {
		return fmt.Errorf("change the answers: %w", err)
	}
	if err := consumer.DamageProjection(ctx, s.Changes, now); err != nil {
		return err
	}
	if err := consumer.FillPayments(ctx); err != nil {
		return err
	}
	if err := consumer.FillScores(ctx); err != nil {
		return err
	}
	s.options.Note("payments: %d bills of %d months, a review that lets in the last month's", len(world.Bills()), world.LastMonth-world.FirstMonth+1)
	d := world.TotalDamage()
	s.options.Note("damage: %d missing, %d stale, %d hash conflicts, %d tombstones, %d local ahead, %d extra (%d of them new), %d of revision zero, %d that can't be repaired",
		d.Missing, d.Stale, d.HashConflict, d.Tombstone, d.LocalAhead, d.ExtraOld+d.ExtraNew, d.ExtraNew, d.RevisionZero, d.Unrepairable)
	return nil
}

// Pools opens both databases for reading the tables directly.
func (s *Stack) Pools(ctx context.Context) (center, consumer store.Pool, err error) {
	if center, err = store.Open(ctx, s.CenterDSN); err != nil {
		return center, consumer, fmt.Errorf("center: %w", err)
	}
	if consumer, err = store.Open(ctx, s.ConsumerDSN); err != nil {
		center.Close()
		return center, consumer, fmt.Errorf("consumer: %w", err)
	}
	return center, consumer, nil
}

// Died returns why a service has ended by itself, nil while both run.
func (s *Stack) Died() error {
	for _, p := range []*process.Process{s.center, s.consumer} {
		if p == nil {
			continue // another one's
		}
		select {
		case <-p.Ended():
			return p.Death()
		default:
		}
	}
	return nil
}

// Await blocks until ctx ends (nil) or a service has ended by itself.
func (s *Stack) Await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.center.Ended():
		return s.center.Death()
	case <-s.consumer.Ended():
		return s.consumer.Death()
	}
}

// Stop ends everything, newest first, and removes what was made. It may be called twice.
func (s *Stack) Stop() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	s.undo = nil
	return errors.Join(errs...)
}
