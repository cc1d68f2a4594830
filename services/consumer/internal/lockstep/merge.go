package lockstep

import (
	"fmt"
	"iter"

	"lockstep.dev/pkg/evidence"
)

// Rows makes rows that are held already, such as a Part's, a local side for Merge.
func Rows(rows []evidence.Row) iter.Seq2[evidence.Row, error] {
	return func(yield func(evidence.Row, error) bool) {
		for i := range rows {
			if !yield(rows[i], nil) {
				return
			}
		}
	}
}

// Merge walks the verified center rows and the local rows of one range and
// emits every difference in key order. It holds one local row at a time; what
// it emits may be kept. An error of the local side or of emit ends it and is
// returned as it is; ErrOrder says that a side's keys do not ascend or leave
// the range, and then a row already called missing may have come late: nothing
// emitted before it may be believed.
func Merge(r Range, center []evidence.PageRow, local iter.Seq2[evidence.Row, error], emit func(Difference) error) error {
	m := merger{span: r, center: center, emit: emit}
	if err := m.checkCenter(); err != nil {
		return err
	}
	for row, err := range local {
		if err != nil {
			return err
		}
		if err := m.take(row); err != nil {
			return err
		}
	}
	return m.rest()
}

type merger struct {
	span    Range
	center  []evidence.PageRow
	next    int // in center
	last    string
	started bool
	emit    func(Difference) error
}

func (m *merger) checkCenter() error {
	for i := range m.center {
		if (i > 0 && m.center[i].Key <= m.center[i-1].Key) || !m.span.Contains(m.center[i].Key) {
			return fmt.Errorf("%w: center row %d of the range", ErrOrder, i)
		}
	}
	return nil
}

// take handles the next local row and every center row up to it.
func (m *merger) take(row evidence.Row) error {
	if (m.started && row.Key <= m.last) || !m.span.Contains(row.Key) {
		return fmt.Errorf("%w: a local row of the range", ErrOrder)
	}
	m.last, m.started = row.Key, true
	if err := m.centerBelow(row.Key); err != nil {
		return err
	}
	var center *evidence.PageRow
	if m.next < len(m.center) && m.center[m.next].Key == row.Key {
		center = &m.center[m.next]
		m.next++
	}
	class, differs := Classify(center, &row)
	if !differs {
		return nil
	}
	// Only a row that differs is worth a copy of its own.
	held := row
	return m.emit(Difference{Class: class, Center: center, Local: &held})
}

// centerBelow emits the center rows below key: the local side has none of them.
func (m *merger) centerBelow(key string) error {
	for m.next < len(m.center) && m.center[m.next].Key < key {
		if err := m.centerOnly(); err != nil {
			return err
		}
	}
	return nil
}

func (m *merger) rest() error {
	for m.next < len(m.center) {
		if err := m.centerOnly(); err != nil {
			return err
		}
	}
	return nil
}

func (m *merger) centerOnly() error {
	center := &m.center[m.next]
	m.next++
	class, _ := Classify(center, nil) // one side alone always differs
	return m.emit(Difference{Class: class, Center: center})
}
