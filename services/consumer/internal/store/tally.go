package store

import (
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Tally is told, once an effect is committed, what it wrote into the ledger:
// found differences of a class that were not there before, and outcomes.
type Tally struct {
	Found   func(class protocol.Class, n int)
	Outcome func(outcome protocol.Outcome, n int)
}

// tally counts rows (class, outcome, new) for the time after the commit.
func (e *Effect) tally(rows pgx.Rows) error {
	found, outcomes := map[protocol.Class]int{}, map[protocol.Outcome]int{}
	var class protocol.Class
	var outcome protocol.Outcome
	var fresh bool
	_, err := pgx.ForEachRow(rows, []any{&class, &outcome, &fresh}, func() error {
		outcomes[outcome]++
		if fresh {
			found[class]++
		}
		return nil
	})
	if err != nil || e.told.Found == nil {
		return err
	}
	e.OnCommit(func() {
		for class, n := range found {
			e.told.Found(class, n)
		}
		for outcome, n := range outcomes {
			e.told.Outcome(outcome, n)
		}
	})
	return nil
}
