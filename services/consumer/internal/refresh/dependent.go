package refresh

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/config"
)

// Dependent says which scopes of a projection depend on a reconciled record:
// those that its content names.
type Dependent struct {
	// Projection that is refreshed.
	Projection string `koanf:"projection"`
	// ID is where the scope's id stands in a record's content: names of members, from the
	// outside in, parted by dots.
	ID string `koanf:"id"`
	// Month is where the scope's month stands, likewise.
	Month string `koanf:"month"`
	// Payload writes a request for scopes in the projection's own JSON.
	Payload func([]Scope) ([]byte, error) `koanf:"-"`
}

// Validate tells everything that is wrong.
func (d *Dependent) Validate() error {
	var p config.Problems
	p.Check(d.Projection != "", "projection is missing")
	for name, path := range map[string]string{"id": d.ID, "month": d.Month} {
		p.Check(path != "" && !slices.Contains(strings.Split(path, "."), ""), "%s is no path into the content", name)
	}
	return p.Err()
}

// ReconcileTrigger is who asks, in the tasks and rows.
const ReconcileTrigger = "reconcile"

// RequestDependent asks for the refresh of what depends on reconciled records,
// inside the transaction that repairs or retires them: both are committed, or
// neither. contents are the records' contents before and after the change; one
// that names no scope asks for nothing. The answers go to Committed after the
// commit.
//
// Each scope is a request of its own, whose key is the scope's: repairs of many
// records of one scope are one task, refreshed once.
func (e *Engine) RequestDependent(ctx context.Context, tx pgx.Tx, dependents []Dependent, contents [][]byte) ([]Submitted, error) {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '`+dependentLock+`'`); err != nil {
		return nil, fmt.Errorf("request dependent refreshes: %w", err)
	}
	out, err := e.requestAll(ctx, tx, dependents, contents)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout TO DEFAULT`); err != nil {
		return nil, fmt.Errorf("request dependent refreshes: %w", err)
	}
	return out, nil
}

// dependentLock is how long a repair waits for a task that a host transaction
// has just submitted to. The host may be waiting for the repaired record: far
// below PostgreSQL's deadlock_timeout (1 s), it is the repair that gives up.
const dependentLock = "200ms"

func (e *Engine) requestAll(ctx context.Context, tx pgx.Tx, dependents []Dependent, contents [][]byte) ([]Submitted, error) {
	var requests []Request
	asked := map[string]bool{}
	for _, d := range dependents {
		for _, s := range d.scopes(contents) {
			payload, err := d.Payload([]Scope{s})
			if err != nil {
				return nil, fmt.Errorf("request scope %s of %s: %w", s, d.Projection, err)
			}
			req, err := e.Parse(Input{Projection: d.Projection, Payload: payload, Trigger: ReconcileTrigger})
			if err != nil {
				return nil, fmt.Errorf("request scope %s of %s: %w", s, d.Projection, err)
			}
			// Two paths may lead to one scope.
			if code := TaskCode(req.Projection, req.BusinessKey); !asked[code] {
				asked[code] = true
				requests = append(requests, req)
			}
		}
	}
	return e.SubmitAll(ctx, tx, requests)
}

// scopes finds the scopes that contents name, each once and in their order.
func (d *Dependent) scopes(contents [][]byte) []Scope {
	var out []Scope
	for _, content := range contents {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.UseNumber() // an id may have more digits than a float
		var root any
		if decoder.Decode(&root) != nil {
			continue
		}
		id, okID := wholeNumber(at(root, d.ID))
		month, okMonth := monthOf(at(root, d.Month))
		if okID && okMonth && id > 0 {
			out = append(out, Scope{ID: id, Month: month})
		}
	}
	slices.SortFunc(out, func(a, b Scope) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Month, b.Month)) })
	return slices.Compact(out)
}

// at follows a path of member names; nil where it leads nowhere.
func at(value any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

func wholeNumber(value any) (int64, bool) {
	n, err := strconv.ParseInt(word(value), 10, 64)
	return n, err == nil
}

// monthOf reads yyyyMM, yyyy-MM and anything longer that begins so, such as a date.
func monthOf(value any) (int32, bool) {
	text := word(value)
	if len(text) >= len("2006-01") && text[4] == '-' {
		text = text[:4] + text[5:7]
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || len(text) != len("200601") || n < 100001 || n%100 < 1 || n%100 > 12 {
		return 0, false
	}
	return int32(n), true
}

// word is a number or a text as it is written, "" for anything else.
func word(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	default:
		return ""
	}
}
