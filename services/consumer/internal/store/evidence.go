package store

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// Evidenced is a ledger row's signed word.
type Evidenced struct {
	Key     string // raw
	Outcome protocol.Outcome
	Word    []byte // the envelope as it was stored
}

// Instruction reads the newest accepted instruction as it came.
func (s *Store) Instruction(ctx context.Context, w *Work) ([]byte, error) {
	var instruction []byte
	if err := s.pool.QueryRow(ctx, `SELECT instruction FROM lockstep.work WHERE task_id = $1`, w.TaskID).Scan(&instruction); err != nil {
		return nil, fmt.Errorf("read the instruction of %s: %w", w.ID(), err)
	}
	return instruction, nil
}

// EvidencePage is a part of a task's words.
type EvidencePage struct {
	After    string // raw
	Limit    int
	MaxBytes int
}

// Evidence reads the words of a task in key order. A page is cut by rows and by
// bytes; it has one word at least. more says that others follow.
func (s *Store) Evidence(ctx context.Context, w *Work, p EvidencePage) (words []Evidenced, more bool, err error) {
	if w.PurgedAt != nil {
		return nil, false, fault.New(fault.NotFound, "the words of the task were purged after the retention time")
	}
	rows, err := s.pool.Query(ctx, `SELECT record_key, outcome, evidence FROM lockstep.outcome
		WHERE tenant_id = $1 AND task_id = $2 AND record_key > $3 AND evidence IS NOT NULL
		ORDER BY record_key LIMIT $4`, w.TenantID, w.TaskID, []byte(p.After), p.Limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("read the words of %s: %w", w.ID(), err)
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		var e Evidenced
		var key []byte
		if err := rows.Scan(&key, &e.Outcome, &e.Word); err != nil {
			return nil, false, fmt.Errorf("read the words of %s: %w", w.ID(), err)
		}
		e.Key = string(key)
		if size += len(e.Word); len(words) == p.Limit || size > p.MaxBytes && len(words) > 0 {
			return words, true, nil
		}
		words = append(words, e)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("read the words of %s: %w", w.ID(), err)
	}
	return words, false, nil
}
