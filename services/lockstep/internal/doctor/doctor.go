// Package doctor checks a dataset's mapping against the live table before the
// first run, and says what to do about what it finds. It only reads.
package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/services/lockstep/internal/store"
)

// Level says how bad a finding is.
type Level string

// Only Fail makes a mapping unfit.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Check is one finding.
type Check struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
}

// Report is everything that was looked at.
type Report struct {
	Side    string  `json:"side"`
	Dataset string  `json:"dataset"`
	Table   string  `json:"table"`
	OK      bool    `json:"ok"`
	Checks  []Check `json:"checks"`
}

func (r *Report) add(name string, level Level, format string, args ...any) {
	r.Checks = append(r.Checks, Check{Name: name, Level: level, Detail: fmt.Sprintf(format, args...)})
}

const (
	minVersion  = 150000
	sampleRows  = 1000
	fewVisible  = 80 // percent; below, an index-only scan spends its time in the table
	tooFewPages = 64 // half a megabyte: whatever it does is quick
)

// settings is what doctor reads of a service's configuration; the rest is the service's to judge.
type settings struct {
	Store   database       `koanf:"store"`
	Source  database       `koanf:"source"`
	Dataset dataset.Config `koanf:"dataset"`
	Rest    map[string]any `koanf:",remain"`
}

type database struct {
	DSN  string         `koanf:"dsn"`
	Rest map[string]any `koanf:",remain"`
}

// Run checks the mapping in a service's configuration file.
func Run(ctx context.Context, path string, side dataset.Side) (*Report, error) {
	name := map[dataset.Side]string{dataset.Center: "center", dataset.Consumer: "consumer"}[side]
	var s settings
	if err := config.Load(path, "LOCKSTEP_"+strings.ToUpper(name), &s); err != nil {
		return nil, err
	}
	dsn, setting := s.Store.DSN, "store.dsn"
	if side == dataset.Center {
		dsn, setting = s.Source.DSN, "source.dsn"
	}
	if dsn == "" {
		return nil, fmt.Errorf("%s: %s is missing", path, setting)
	}
	pool, err := store.Open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	r := &Report{Side: name, Dataset: s.Dataset.Name, Table: s.Dataset.Table}
	if err := examine(ctx, r, pool, s.Dataset, side); err != nil {
		return nil, err
	}
	r.OK = !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Level == Fail })
	return r, nil
}

func examine(ctx context.Context, r *Report, pool store.Pool, cfg dataset.Config, side dataset.Side) error {
	server, err := pool.Server(ctx)
	if err != nil {
		return err
	}
	r.server(server, side)
	table, err := pool.Resolve(ctx, cfg, side)
	if err != nil {
		// Each wrong column is a finding of its own.
		for _, one := range flatten(err) {
			r.add("columns", Fail, "%s", one)
		}
		return nil
	}
	r.add("columns", OK, "every mapped column exists and has a type that fits")
	for _, check := range []func(context.Context, *Report, store.Pool, *dataset.Table, dataset.Side) error{privileges, inserts, lengths, indexes, visibility, outbox, sample} {
		if err := check(ctx, r, pool, table, side); err != nil {
			return err
		}
	}
	return nil
}

// flatten lists the errors that were joined.
func flatten(err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, flatten(one)...)
	}
	return out
}

func (r *Report) server(s store.Server, side dataset.Side) {
	level, note := OK, ""
	switch {
	case s.Version < minVersion:
		level, note = Fail, "; version 15 or newer is needed"
	case s.Standby && side == dataset.Consumer:
		level, note = Fail, "; it is a standby, which can't be written"
	case s.Standby:
		level, note = Fail, "; it is a standby, whose words are not the newest"
	case s.Superuser:
		level, note = Warn, "; it is a superuser, so privileges prove nothing here"
	}
	r.add("server", level, "PostgreSQL %d.%d as role %s%s", s.Version/10000, s.Version%10000, s.Role, note)
}

// sample judges real rows: the order and the spelling of the keys, and the hash round trip.
func sample(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	rows, err := pool.Sample(ctx, t, sampleRows)
	if err != nil {
		r.add("sample", Fail, "%v", err)
		return nil //nolint:nilerr // a table that can't be read is a finding
	}
	if len(rows) == 0 {
		r.add("key order", Warn, "the table has no row to look at")
		r.add("hash", Warn, "the table has no row to look at")
		return nil
	}
	r.keys(t, rows)
	r.nulls(rows)
	r.hashes(rows, side)
	return nil
}

func (r *Report) keys(t *dataset.Table, rows []store.Sampled) {
	last := ""
	for i, row := range rows {
		raw, err := t.DecodeKey(row.Raw)
		if err != nil {
			r.add("key order", Fail, "key %q: %v", row.Key, err)
			return
		}
		if i > 0 && raw <= last {
			r.add("key order", Fail, "key %q comes after a larger or an equal one; within a collection keys must be unique and in byte order", row.Key)
			return
		}
		last = raw
	}
	r.add("key order", OK, "%d keys of one collection come in byte order", len(rows))
}

func (r *Report) nulls(rows []store.Sampled) {
	for _, row := range rows {
		if row.Null != "" {
			r.add("values", Fail, "row %s has no value in column %s", row.Key, row.Null)
			return
		}
	}
	r.add("values", OK, "no mapped column that needs a value lacks one in %d rows", len(rows))
}

func (r *Report) hashes(rows []store.Sampled, side dataset.Side) {
	var hasher canon.Hasher
	var refused, other []string
	for _, row := range rows {
		hash, err := hasher.Sum(row.Content)
		switch {
		case err != nil:
			refused = append(refused, row.Key)
		case side == dataset.Consumer && !bytes.Equal(hash[:], row.Hash):
			other = append(other, row.Key)
		}
	}
	switch {
	case len(other) > 0:
		r.add("hash", Fail, "of %d rows, %d hold a hash that is not their content's (%s); the host must compute it as %s does, or the rows count as conflicts",
			len(rows), len(other), some(other), canon.ID)
	case len(refused) > 0:
		r.add("hash", Warn, "of %d rows, %d hold content that has no canonical form (%s); they will be quarantined", len(rows), len(refused), some(refused))
	case side == dataset.Consumer:
		r.add("hash", OK, "%d stored hashes are those of their content", len(rows))
	default:
		r.add("hash", OK, "the content of %d rows has a canonical form", len(rows))
	}
}

// some names the first of many.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
