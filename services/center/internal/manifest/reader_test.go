package manifest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

func wantReason(t *testing.T, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

// eleven rows in pages of four: 1–4, 5–8, 9–11.
func eleven(t *testing.T) (*evidencetest.World, *task.Task) {
	t.Helper()
	w := evidencetest.New(t)
	w.Answers(11)
	return w, w.Complete()
}

func TestIndex(t *testing.T) {
	w, tk := eleven(t)
	all, completed, err := w.Reader.Index(t.Context(), tk, 0, 0)
	if err != nil || !completed || len(all) != 3 {
		t.Fatal(len(all), completed, err)
	}
	t.Run("folds into the root", func(t *testing.T) {
		var roots []evidence.Node
		rows := 0
		for i, e := range all {
			roots, rows = append(roots, e.Root), rows+e.Rows
			if want := evidencetest.Key(min(4*(i+1), 11)); protocol.FormatKey(e.LastKey) != want {
				t.Errorf("page %d ends with %x", i, e.LastKey)
			}
		}
		if evidence.Fold(roots) != tk.ManifestRoot || rows != 11 {
			t.Errorf("%d rows under %x", rows, evidence.Fold(roots))
		}
	})
	t.Run("is completed only with the last page", func(t *testing.T) {
		for _, c := range []struct {
			from, limit, entries int
			completed            bool
		}{{0, 2, 2, false}, {2, 2, 1, true}, {1, 2, 2, true}, {0, 3, 3, true}, {2, 1, 1, true}} {
			entries, completed, err := w.Reader.Index(t.Context(), tk, c.from, c.limit)
			if err != nil || len(entries) != c.entries || completed != c.completed || !slices.Equal(entries, all[c.from:c.from+c.entries]) {
				t.Errorf("%+v: %d entries, completed %t, %v", c, len(entries), completed, err)
			}
		}
	})
	t.Run("has no pages outside", func(t *testing.T) {
		for _, from := range []int{-1, 3, 4} {
			_, _, err := w.Reader.Index(t.Context(), tk, from, 0)
			wantReason(t, err, fault.CursorInvalid)
		}
		_, _, err := w.Reader.Index(t.Context(), tk, 0, 10_001)
		wantReason(t, err, fault.InvalidArgument)
	})
	t.Run("of an empty manifest is empty and completed", func(t *testing.T) {
		w := evidencetest.New(t)
		entries, completed, err := w.Reader.Index(t.Context(), w.Complete(), 0, 0)
		if err != nil || !completed || len(entries) != 0 {
			t.Error(len(entries), completed, err)
		}
	})
}

func TestPages(t *testing.T) {
	w, tk := eleven(t)
	t.Run("are those asked for, and prove into the index", func(t *testing.T) {
		index, _, err := w.Reader.Index(t.Context(), tk, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		pages, left, err := w.Reader.Pages(t.Context(), tk, []int{0, 2})
		if err != nil || len(pages) != 2 || len(left) != 0 {
			t.Fatal(len(pages), left, err)
		}
		for _, p := range pages {
			rows, err := evidence.DecodePage(p.Body, nil, 4)
			if err != nil || evidence.PageRowsRoot(rows) != index[p.Number].Root {
				t.Errorf("page %d: %v", p.Number, err)
			}
			if rows[0].SchemaVersion != 3 || rows[0].Sequence != 41 {
				t.Errorf("row %+v", rows[0])
			}
		}
	})
	t.Run("are refused by number", func(t *testing.T) {
		for _, numbers := range [][]int{nil, {-1}, {3}, {1, 1}, {1, 0}, make([]int, 513)} {
			_, _, err := w.Reader.Pages(t.Context(), tk, numbers)
			wantReason(t, err, fault.InvalidArgument)
		}
	})
	t.Run("are cut by bytes and what is left over is named", func(t *testing.T) {
		tk, set := heavy(t, w)
		pages, left, err := w.Reader.Pages(t.Context(), tk, []int{0, 1, 2, 3, 4})
		if err != nil || len(pages) != 3 || !slices.Equal(left, []int{3, 4}) {
			t.Errorf("%d pages, left over %v, %v", len(pages), left, err)
		}
		if pages, left, err = w.Reader.Pages(t.Context(), tk, []int{5, 6}); err != nil || len(pages) != 1 || !slices.Equal(left, []int{6}) {
			t.Errorf("set %s: a page above the limit comes alone: %d pages, left over %v, %v", set.ID, len(pages), left, err)
		}
	})
}

// heavy writes a set of pages of a megabyte, and one of four, as no
// materialiser does, and gives a task that has it.
func heavy(t *testing.T, w *evidencetest.World) (*task.Task, frozen.Set) {
	t.Helper()
	set := frozen.Set{ID: uuid.New(), TenantID: evidencetest.Tenant}
	w.Exec(`INSERT INTO lockstep.manifest (manifest_id, tenant_id, task_id) VALUES ($1, $2, $3)`, set.ID, set.TenantID, uuid.New())
	var pages []frozen.Page
	for i := range 7 {
		size := 1 << 20
		if i == 5 {
			size = 4 << 20
		}
		pages = append(pages, frozen.Page{Number: i, Rows: 1, LastKey: []byte{byte(i)}, Body: make([]byte, size)})
	}
	if err := w.Frozen.Write(t.Context(), set, pages); err != nil {
		t.Fatal(err)
	}
	return &task.Task{ManifestState: task.ManifestComplete, ManifestID: set.ID, TenantID: set.TenantID, PageCount: 7, RowCount: 7, PageRows: 1}, set
}

func TestRows(t *testing.T) {
	w, tk := eleven(t)
	for _, size := range []int{1, 2, 3, 4, 5, 10, 11, 12, 500} {
		cursor, n := "", 0
		for calls := 0; ; calls++ {
			page, err := w.Reader.Rows(t.Context(), tk, cursor, size)
			if err != nil || calls > 11 {
				t.Fatalf("size %d: call %d: %v", size, calls, err)
			}
			if page.TotalRows != 11 || page.TotalPages != 1 {
				t.Errorf("totals %d, %d", page.TotalRows, page.TotalPages)
			}
			for _, r := range page.Rows {
				if n++; protocol.FormatKey(r.Key) != evidencetest.Key(n) || r.Revision != 1 || r.SchemaVersion != 3 {
					t.Errorf("size %d: row %d is %+v", size, n, r)
				}
			}
			if page.Completed {
				break
			}
			if len(page.Rows) != size {
				t.Errorf("size %d: a page of %d rows", size, len(page.Rows))
			}
			cursor = page.NextCursor
		}
		if n != 11 {
			t.Errorf("size %d: %d rows", size, n)
		}
	}
	t.Run("behind the last row there is nothing, and that is the end", func(t *testing.T) {
		page, err := w.Reader.Rows(t.Context(), tk, evidencetest.Key(11), 5)
		if err != nil || len(page.Rows) != 0 || !page.Completed {
			t.Errorf("%+v, %v", page, err)
		}
	})
	t.Run("a cursor that is no key of the manifest is refused", func(t *testing.T) {
		for _, cursor := range []string{"x", "7", evidencetest.Key(1)[1:], "0000000000000000000000000000010A", uuid.NewString(), evidencetest.Key(12), evidencetest.Between(3)} {
			_, err := w.Reader.Rows(t.Context(), tk, cursor, 5)
			wantReason(t, err, fault.CursorInvalid)
		}
	})
	t.Run("a size out of range is refused", func(t *testing.T) {
		for _, size := range []int{-1, 501} {
			_, err := w.Reader.Rows(t.Context(), tk, "", size)
			wantReason(t, err, fault.InvalidArgument)
		}
	})
	t.Run("pages are counted in the default size", func(t *testing.T) {
		page, err := manifest.NewReader(w.Frozen, 5).Rows(t.Context(), tk, "", 0)
		if err != nil || page.TotalPages != 3 || len(page.Rows) != 5 || page.Completed {
			t.Errorf("%+v, %v", page, err)
		}
	})
	t.Run("an empty manifest is completed", func(t *testing.T) {
		w := evidencetest.New(t)
		tk := w.Complete()
		page, err := w.Reader.Rows(t.Context(), tk, "", 0)
		if err != nil || !page.Completed || len(page.Rows) != 0 || page.TotalPages != 0 {
			t.Errorf("%+v, %v", page, err)
		}
		_, err = w.Reader.Rows(t.Context(), tk, evidencetest.Key(1), 0)
		wantReason(t, err, fault.CursorInvalid)
	})
}

func TestNothingIsReadBeforeTheManifestIsComplete(t *testing.T) {
	w := evidencetest.New(t)
	for _, state := range []task.ManifestState{task.ManifestPending, task.ManifestFailed, task.ManifestPurged} {
		tk := &task.Task{ManifestState: state, State: protocol.Queued}
		_, err := w.Reader.Header(tk)
		wantReason(t, err, fault.ManifestNotReady)
		_, _, err = w.Reader.Index(t.Context(), tk, 0, 0)
		wantReason(t, err, fault.ManifestNotReady)
		_, _, err = w.Reader.Pages(t.Context(), tk, []int{0})
		wantReason(t, err, fault.ManifestNotReady)
		_, err = w.Reader.Rows(t.Context(), tk, "", 0)
		wantReason(t, err, fault.ManifestNotReady)
		_, err = w.Reader.Places(t.Context(), tk, []string{"key"})
		wantReason(t, err, fault.ManifestNotReady)
	}
}

func TestPlaces(t *testing.T) {
	raw := func(t *testing.T, key string) string {
		t.Helper()
		k, err := protocol.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 9, 11, 37} {
		w := evidencetest.New(t)
		w.Answers(n)
		tk := w.Complete()
		keys := []string{raw(t, Key0)}
		for i := 1; i <= n; i++ {
			keys = append(keys, raw(t, evidencetest.Key(i)), raw(t, evidencetest.Between(i)))
		}
		for _, twice := range []string{"read", "kept"} { // the second time from the kept index
			places, err := w.Reader.Places(t.Context(), tk, keys)
			if err != nil || len(places) != len(keys) {
				t.Fatalf("%d rows, %s: %d places, %v", n, twice, len(places), err)
			}
			for i, key := range keys {
				p, isRow := places[key], i%2 == 1
				if p.Present != isRow {
					t.Errorf("%d rows: key %x present %t", n, key, p.Present)
				}
				if isRow {
					continue
				}
				if err := p.Absence.Verify(key, uint64(n), tk.ManifestRoot); err != nil {
					t.Errorf("%d rows: key %x: %v", n, key, err)
				}
				if i > 0 && p.Absence.Left.Row.Key != keys[i-1] || i == 0 && p.Absence.Left != nil {
					t.Errorf("%d rows: the left neighbour of %x is %+v", n, key, p.Absence.Left)
				}
			}
		}
		end(w)
	}
}

// Key0 sorts before every key of evidencetest.
const Key0 = "00000000000000000000000000000001"

func TestPlacesNoticesDamage(t *testing.T) {
	w, tk := eleven(t)
	w.Exec(`ALTER TABLE lockstep.manifest_page DISABLE TRIGGER frozen`)
	key, err := protocol.ParseKey(evidencetest.Between(6))
	if err != nil {
		t.Fatal(err)
	}
	body := frozenBody(t, w, tk)
	w.Exec(`UPDATE lockstep.manifest_page SET body = $1 WHERE page = 1`, bytes.Replace(body, []byte{2}, []byte{4}, 1))
	if _, err := w.Reader.Places(t.Context(), tk, []string{key}); err == nil {
		t.Error("a changed page gave evidence")
	}
	w.Exec(`DELETE FROM lockstep.manifest_page WHERE page = 1`)
	if _, _, err := w.Reader.Index(t.Context(), tk, 0, 0); err == nil {
		t.Error("an index with a page missing was served")
	}
	if _, _, err := w.Reader.Pages(t.Context(), tk, []int{1, 2}); err == nil {
		t.Error("a missing page was passed over")
	}
}

func frozenBody(t *testing.T, w *evidencetest.World, tk *task.Task) []byte {
	t.Helper()
	pages, _, err := w.Reader.Pages(t.Context(), tk, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	return pages[0].Body
}
