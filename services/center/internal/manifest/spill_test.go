package manifest

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
)

// spillPlan has parts of a few rows each, whose keys begin with 0, 1, 2 and so on.
func spillPlan(rows ...int64) (plan source.Plan) {
	for i, n := range rows {
		part := source.Part{Rows: n}
		if i > 0 {
			part.After = plan.Parts[i-1].UpTo
		}
		if i < len(rows)-1 {
			part.UpTo = string(rune('0'+i)) + strings.Repeat("\xff", spilledKey-1)
		}
		plan.Parts = append(plan.Parts, part)
		plan.Rows += n
	}
	return plan
}

func spillRow(part int, random *rand.Rand) evidence.PageRow {
	key := make([]byte, spilledKey)
	for i := range key {
		key[i] = byte(random.Uint32())
	}
	key[0] = byte('0' + part)
	row := evidence.PageRow{
		Row:           evidence.Row{Key: string(key), Revision: random.Int64(), Deleted: random.IntN(2) == 0},
		SchemaVersion: -random.Int64(), Sequence: random.Int64(),
	}
	for i := range row.Hash {
		row.Hash[i] = byte(random.Uint32())
	}
	return row
}

// What several readers put in comes out as it was, in its part.
func TestSpill(t *testing.T) {
	const readers = 3
	rows := []int64{1000, 1, 999, 700}
	dir := t.TempDir()
	s, err := newSpill(dir, true, spillPlan(rows...))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if names, err := os.ReadDir(dir); len(names) > 0 || err != nil {
		t.Errorf("the folder shows %v, %v", names, err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	want := make([][]evidence.PageRow, len(rows))
	var all []evidence.PageRow
	for part, n := range rows {
		for range n {
			row := spillRow(part, random)
			want[part] = append(want[part], row)
			all = append(all, row)
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var done sync.WaitGroup
	for reader := range readers {
		done.Go(func() {
			tray := s.tray()
			for i := reader; i < len(all); i += readers {
				if err := tray.add(&all[i]); err != nil {
					t.Error(err)
				}
			}
			if err := tray.finish(); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	var got []evidence.PageRow
	var buf []byte
	byKey := func(a, b evidence.PageRow) int { return strings.Compare(a.Key, b.Key) }
	for part := range rows {
		if got, buf, err = s.read(part, got[:0], buf); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, byKey)
		slices.SortFunc(want[part], byKey)
		if !slices.Equal(got, want[part]) {
			t.Errorf("part %d came out as %d rows, or as others", part, len(got))
		}
	}
}

// A part has as many rows as were counted: one more is noticed when it is
// written, one less when it is read.
func TestSpillKeepsCount(t *testing.T) {
	s, err := newSpill(t.TempDir(), true, spillPlan(1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	random := rand.New(rand.NewPCG(3, 4))
	tray := s.tray()
	for range 2 {
		row := spillRow(0, random)
		if err := tray.add(&row); err != nil {
			t.Fatal(err)
		}
	}
	if err := tray.finish(); fault.ReasonOf(err) != fault.OrderViolation {
		t.Errorf("two rows in a part of one: %v", err)
	}
	tray = s.tray()
	row := spillRow(1, random)
	if err := errors.Join(tray.add(&row), tray.finish()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.read(1, nil, nil); fault.ReasonOf(err) != fault.OrderViolation {
		t.Errorf("one row in a part of two: %v", err)
	}
}

// Where a file has no place, that is known before anything is read, and
// nothing is left of the try.
func TestNoPlaceToSpill(t *testing.T) {
	dir := t.TempDir()
	huge := spillPlan(1, 2, 3, 1<<50)
	for name, c := range map[string]struct {
		dir  string
		plan source.Plan
	}{
		"no folder": {filepath.Join(dir, "missing"), spillPlan(1, 2, 3, 4)},
		"in memory": {"/dev/shm", spillPlan(1, 2, 3, 4)},
		"too large": {dir, huge},
	} {
		if s, err := newSpill(c.dir, false, c.plan); !errors.Is(err, errNoSpill) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if left, err := filepath.Glob("/dev/shm/lockstep-manifest-*"); len(left) > 0 || err != nil {
		t.Errorf("left in memory: %v, %v", left, err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}
