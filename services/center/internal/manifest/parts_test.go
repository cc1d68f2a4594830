package manifest_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/task"
)

// The ways in which a set is read.
const (
	byRanges = "ranges"
	inOrder  = "ordered"
	asLying  = "heap"
)

// parted is a world whose manifests have pages of 128 rows, read 128 rows a
// part where there are so many, in one of the ways.
func parted(t *testing.T, readers int, way string) *evidencetest.World {
	t.Helper()
	w := evidencetest.New(t)
	w.Materialiser.Limits.PageRows, w.Materialiser.PartRows, w.Materialiser.Readers = 128, 128, readers
	manifest.SpillAnywhere(w.Materialiser, t.TempDir())
	if way == byRanges {
		w.Materialiser.SpillDir = filepath.Join(w.Materialiser.SpillDir, "missing")
	}
	// One part is read by itself, and few are found by their ranges.
	few := int64(128)
	if way == asLying {
		few = 3 * 128
	}
	readBy(t, w, func(rows int64, got string) {
		if got != way && (rows > few || got != byRanges) {
			t.Errorf("%d rows were read by %s, want %s", rows, got, way)
		}
	})
	// So few rows would be read in the planner's way otherwise.
	off := []string{"enable_sort", "enable_seqscan"}
	if way == inOrder {
		off = []string{"enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"}
	}
	for _, setting := range off {
		w.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + setting + ` = off', current_database()); END $$`)
	}
	w.Store.Pool().Reset()
	return w
}

// readBy has check told, in the end, how each manifest was read.
func readBy(t *testing.T, w *evidencetest.World, check func(rows int64, way string)) {
	t.Helper()
	core, lines := observer.New(zap.InfoLevel)
	w.Materialiser.Log = zap.New(core)
	t.Cleanup(func() {
		for _, line := range lines.FilterMessage("manifest complete").All() {
			rows, _ := line.ContextMap()["rows"].(int64)
			way, _ := line.ContextMap()["read_by"].(string)
			check(rows, way)
		}
		if left, _ := os.ReadDir(w.Materialiser.SpillDir); len(left) > 0 {
			t.Errorf("the folder still holds %v", left)
		}
	})
}

// skewed draws keys of which most share their first bytes, as those of a host
// that counts up do, with the first and the last key of all among them.
func skewed(random *rand.Rand, n int) []string {
	keys := []string{"00000000000000000000000000000000", "ffffffffffffffffffffffffffffffff"}
	for i := len(keys); i < n; i++ {
		var b [16]byte
		for j := range b {
			b[j] = byte(random.Uint32())
		}
		if random.IntN(10) > 0 {
			copy(b[:], "\x01\x8f\x00\x00\x00\x00\x00\x00")
			b[8] = 0
		}
		keys = append(keys, hex.EncodeToString(b[:]))
	}
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:n]
}

// The root is that of RFC 6962's definition over the sorted rows, however the
// rows were read: at once, part by part by several readers, or as one stream.
func TestPartsGiveTheRootOfTheWhole(t *testing.T) {
	for _, c := range []struct {
		readers int
		way     string
		sizes   []int
	}{
		{1, inOrder, []int{0, 1, 127, 128, 129}},
		{1, byRanges, []int{0, 129, 900}},
		{4, byRanges, []int{1, 127, 128, 129, 255, 256, 257, 1000}},
		{4, inOrder, []int{256, 700}},
		{1, asLying, []int{513, 900}},
		{4, asLying, []int{513, 1000, 1024, 40_000}},
	} {
		t.Run(fmt.Sprintf("%d readers, %s", c.readers, c.way), func(t *testing.T) {
			w := parted(t, c.readers, c.way)
			w.Materialiser.Limits.MaxRows, w.Materialiser.Limits.MaxPages = 40_000, 40_000
			for seed, n := range c.sizes {
				random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
				keys := skewed(random, n)
				w.Exec(`TRUNCATE answers.answer`)
				w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, deleted, "values")
					SELECT 7, k::uuid, 'form-1', 1, i, i % 5, i % 3 = 0, jsonb_build_object('n', i) FROM unnest($1::text[]) WITH ORDINALITY AS u (k, i)`, keys)
				w.Exec(`ANALYZE answers.answer`)
				at := map[string]int{}
				for i, key := range keys {
					at[key] = i + 1
				}
				slices.Sort(keys)
				leaves := make([][32]byte, len(keys))
				for i, key := range keys {
					n := at[key]
					leaves[i] = leaf(key, int64(n%5), contentHash(fmt.Sprintf(`{"n":%d}`, n)), n%3 == 0)
				}
				tk := w.Complete()
				if [32]byte(tk.ManifestRoot) != root(leaves) || tk.RowCount != int64(n) || tk.PageCount != (n+127)/128 {
					t.Errorf("%d rows: %d in %d pages, root %x", n, tk.RowCount, tk.PageCount, tk.ManifestRoot)
				}
				if got := rowsOf(t, w, tk); !slices.Equal(got, keys) {
					t.Errorf("%d rows: the pages hold %d keys, or in another order", n, len(got))
				}
				end(w)
			}
		})
	}
}

// rowsOf reads the keys of a manifest, as its pages have them.
func rowsOf(t *testing.T, w *evidencetest.World, tk *task.Task) (keys []string) {
	t.Helper()
	for cursor, done := "", false; !done; {
		page, err := w.Reader.Rows(t.Context(), tk, cursor, 500)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Rows {
			keys = append(keys, protocol.FormatKey(r.Key))
		}
		cursor, done = page.NextCursor, page.Completed
	}
	return keys
}

// Writers that go on all the while tear nothing: every transaction of theirs
// raises all revisions together, and every manifest has one revision only.
func TestWritersDoNotTearAManifest(t *testing.T) {
	for _, way := range []string{byRanges, asLying} {
		t.Run(way, func(t *testing.T) { writersDoNotTear(t, parted(t, 4, way)) })
	}
}

func writersDoNotTear(t *testing.T, w *evidencetest.World) {
	t.Helper()
	w.Exec(manyAnswers, 1, 1500)
	w.Exec(`ANALYZE answers.answer`)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			_, err := w.Store.Pool().Exec(t.Context(), `UPDATE answers.answer SET revision = revision + 1`)
			select {
			case <-stop:
				stopped <- err
				return
			case <-time.After(10 * time.Millisecond): // or the table would soon be mostly dead rows
				if err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	for range 4 {
		tk := w.Complete()
		revisions := map[int64]int{}
		for cursor, done := "", false; !done; {
			page, err := w.Reader.Rows(t.Context(), tk, cursor, 500)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.Rows {
				revisions[r.Revision]++
			}
			cursor, done = page.NextCursor, page.Completed
		}
		if len(revisions) != 1 || tk.RowCount != 1500 {
			t.Errorf("%d rows, by revision %v", tk.RowCount, revisions)
		}
		end(w)
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// What is written between the count and the read is of another snapshot.
func TestTheCountIsOfTheSameSnapshot(t *testing.T) {
	for _, way := range []string{inOrder, byRanges, asLying} {
		w := parted(t, 3, way)
		w.Materialiser.Limits.MaxRows = 600
		w.Exec(manyAnswers, 1, 600)
		w.Exec(`ANALYZE answers.answer`)
		manifest.Counted(w.Materialiser, func() {
			w.Exec(manyAnswers, 601, 700)
			w.Exec(`DELETE FROM answers.answer WHERE seq_no <= 50`)
		})
		if tk := w.Complete(); tk.RowCount != 600 {
			t.Errorf("%s: %d rows", way, tk.RowCount)
		}
	}
}

// A key that occurs twice is found wherever it stands: within a part, and on
// both sides of an edge between two.
func TestAKeyTwiceIsFoundAtTheEdgesToo(t *testing.T) {
	for way, rows := range map[string]int{byRanges: 300, asLying: 700} {
		w := parted(t, 2, way)
		w.Exec(`ALTER TABLE answers.answer DROP CONSTRAINT answer_pkey`)
		for _, position := range []int{1, 127, 128, 129, 256, 300} {
			w.Exec(`TRUNCATE answers.answer`)
			w.Exec(manyAnswers, 1, rows)
			w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
				SELECT 7, answer_id, 'form-1', 1, 0, 9, '{}' FROM answers.answer ORDER BY answer_id OFFSET $1::int - 1 LIMIT 1`, position)
			w.Exec(`ANALYZE answers.answer`)
			if tk := w.Materialise(w.Task()); tk.State != protocol.Failed || tk.Code != string(fault.OrderViolation) {
				t.Errorf("%s, at %d: %s %s", way, position, tk.State, tk.Code)
			}
		}
	}
}

// A table that is read as it lies keeps its rows where they are for as long.
func TestTheTableIsNotRewrittenMeanwhile(t *testing.T) {
	w := parted(t, 2, asLying)
	w.Exec(manyAnswers, 1, 900)
	w.Exec(`ANALYZE answers.answer`)
	var refused error
	manifest.Counted(w.Materialiser, func() {
		_, refused = w.Store.Pool().Exec(t.Context(), `BEGIN; LOCK TABLE answers.answer IN ACCESS EXCLUSIVE MODE NOWAIT; COMMIT`)
	})
	if tk := w.Complete(); tk.RowCount != 900 {
		t.Errorf("%d rows", tk.RowCount)
	}
	if pg.Code(refused) != "55P03" {
		t.Errorf("a lock for a rewriting: %v, want lock_not_available", refused)
	}
}

// A host that replaces all rows in one transaction is waited for: the snapshot
// is of after it, not of the empty table that an older one would see.
func TestATableThatIsReplacedIsNeverSeenEmpty(t *testing.T) {
	w := parted(t, 1, byRanges)
	w.Exec(manyAnswers, 1, 50)
	id := w.Task()
	tx, err := w.Store.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`TRUNCATE answers.answer`, strings.NewReplacer("$1", "1", "$2", "40").Replace(manyAnswers)} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	made := make(chan *task.Task)
	go func() { made <- w.Materialise(id) }()
	for waits := false; !waits; {
		if err := w.Store.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tk := <-made; tk.RowCount != 40 {
		t.Errorf("%d rows, want the 40 that were put in", tk.RowCount)
	}
}

// One connection is enough, however many readers there should be.
func TestReadersDoNotWaitForOneAnother(t *testing.T) {
	w := parted(t, 4, asLying)
	pool, err := pg.Open(t.Context(), pg.PoolConfig{DSN: w.Store.Pool().Config().ConnString(), MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	table, err := dataset.Resolve(t.Context(), pool, evidencetest.Mapping(), dataset.Center)
	if err != nil {
		t.Fatal(err)
	}
	if w.Materialiser.Source, err = source.Open(t.Context(), pool, table, zaptest.NewLogger(t)); err != nil {
		t.Fatal(err)
	}
	w.Exec(manyAnswers, 1, 700)
	w.Exec(`ANALYZE answers.answer`)
	if tk := w.Complete(); tk.RowCount != 700 || tk.PageCount != 6 {
		t.Errorf("task %+v", tk)
	}
}
