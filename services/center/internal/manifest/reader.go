package manifest

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

// What one answer may hold. The calls' receivers allow a little more.
const (
	MaxIndexEntries = 10_000    // 100 bytes each: about a megabyte
	MaxPages        = 512       // named in one call
	MaxPageBytes    = 3_500_000 // of page bodies in one answer; a receiver takes 4 MiB
	MaxRows         = 500       // of the row-wise API
)

// Reader serves complete manifests. Its callers have authorised the call and
// pass the task as just read.
type Reader struct {
	// PageBytes of page bodies in one answer, which has one page at least; at
	// most, and where 0, MaxPageBytes.
	PageBytes int

	frozen   *frozen.Store
	pageSize int
	indexes  indexes
}

// NewReader makes a Reader; pageSize is the row-wise API's default.
func NewReader(store *frozen.Store, pageSize int) *Reader {
	return &Reader{frozen: store, pageSize: pageSize}
}

// setOf gives the task's manifest, MANIFEST_NOT_READY where there is none to
// read: "read nothing" must not be mistaken for "the set is empty".
func setOf(tk *task.Task) (frozen.Set, error) {
	if tk.ManifestState != task.ManifestComplete {
		return frozen.Set{}, fault.New(fault.ManifestNotReady, "the manifest is %s", tk.ManifestState).With("task_state", string(tk.State))
	}
	return frozen.Set{ID: tk.ManifestID, TenantID: tk.TenantID}, nil
}

// Header is the signed header, with the bytes that were signed.
func (r *Reader) Header(tk *task.Task) (evidence.Envelope, error) {
	if _, err := setOf(tk); err != nil {
		return evidence.Envelope{}, err
	}
	env, err := document.UnmarshalEnvelope(tk.Header)
	if err != nil {
		return evidence.Envelope{}, fmt.Errorf("header of task %s: %w", tk.ID, err)
	}
	return env, nil
}

// Index reads the page index from a page on; limit 0 is MaxIndexEntries.
// completed says that the last entry is the manifest's last page.
func (r *Reader) Index(ctx context.Context, tk *task.Task, from, limit int) (entries []frozen.Entry, completed bool, err error) {
	set, err := setOf(tk)
	if err != nil {
		return nil, false, err
	}
	if from < 0 || from > 0 && from >= tk.PageCount {
		return nil, false, fault.New(fault.CursorInvalid, "the manifest has %d pages", tk.PageCount).WithField("from_page", "no page of this manifest")
	}
	if limit < 0 || limit > MaxIndexEntries {
		return nil, false, fault.New(fault.InvalidArgument, "limit is out of range").WithField("limit", "0 to %d", MaxIndexEntries)
	}
	if limit == 0 {
		limit = MaxIndexEntries
	}
	if entries, err = r.frozen.Index(ctx, set, from, limit); err != nil {
		return nil, false, err
	}
	if want := min(limit, tk.PageCount-from); len(entries) != want {
		return nil, false, damaged(tk)
	}
	return entries, from+len(entries) == tk.PageCount, nil
}

// damaged: the frozen rows are not what the task adopted. Nothing in the code
// changes them, so somebody or something else did.
func damaged(tk *task.Task) error {
	return fmt.Errorf("manifest %s of task %s is not as it was frozen", tk.ManifestID, tk.ID)
}

// PackedPage is a page's body as frozen.
type PackedPage struct {
	Number int
	Body   []byte
}

// Pages reads pages by number. The answer is cut by bytes; the numbers that
// did not fit are left over.
func (r *Reader) Pages(ctx context.Context, tk *task.Task, numbers []int) (pages []PackedPage, leftOver []int, err error) {
	set, err := setOf(tk)
	if err != nil {
		return nil, nil, err
	}
	if err := checkNumbers(tk, numbers); err != nil {
		return nil, nil, err
	}
	size, most := 0, cmp.Or(r.PageBytes, MaxPageBytes)
	err = r.frozen.Pages(ctx, set, numbers, func(page int, body []byte) (bool, error) {
		if size += len(body); size > most && len(pages) > 0 {
			return false, nil
		}
		pages = append(pages, PackedPage{page, slices.Clone(body)})
		return true, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if len(pages) == 0 {
		return nil, nil, damaged(tk)
	}
	for i, p := range pages {
		if p.Number != numbers[i] {
			return nil, nil, damaged(tk)
		}
	}
	return pages, numbers[len(pages):], nil
}

func checkNumbers(tk *task.Task, numbers []int) error {
	if len(numbers) == 0 || len(numbers) > MaxPages {
		return fault.New(fault.InvalidArgument, "name 1 to %d pages", MaxPages).WithField("pages", "1 to %d numbers", MaxPages)
	}
	for i, n := range numbers {
		if n < 0 || n >= tk.PageCount || i > 0 && n <= numbers[i-1] {
			return fault.New(fault.InvalidArgument, "the manifest has pages 0 to %d", tk.PageCount-1).
				WithField("pages", "numbers must exist and ascend")
		}
	}
	return nil
}

// RowPage is a part of the row-wise view.
type RowPage struct {
	Rows       []evidence.PageRow
	NextCursor string
	Completed  bool // the only end mark
	TotalRows  int64
	TotalPages int64 // of the default page size
}

// Rows reads rows one by one, after the cursor, which is a key of this
// manifest; anything else is CURSOR_INVALID. size 0 is the default.
func (r *Reader) Rows(ctx context.Context, tk *task.Task, cursor string, size int) (*RowPage, error) {
	set, err := setOf(tk)
	if err != nil {
		return nil, err
	}
	if size < 0 || size > MaxRows {
		return nil, fault.New(fault.InvalidArgument, "size is out of range").WithField("size", "0 to %d", MaxRows)
	}
	if size == 0 {
		size = r.pageSize
	}
	after := ""
	if cursor != "" {
		if after, err = protocol.ParseKey(cursor); err != nil {
			return nil, fault.Wrap(err, fault.CursorInvalid, "the cursor is no key").WithField("cursor", "%v", err)
		}
	}
	out := &RowPage{TotalRows: tk.RowCount, TotalPages: (tk.RowCount + int64(r.pageSize) - 1) / int64(r.pageSize)}
	if tk.RowCount == 0 && cursor == "" {
		out.Completed = true
		return out, nil
	}
	if err := r.rowsAfter(ctx, tk, set, after, size, out); err != nil {
		return nil, err
	}
	return out, nil
}

// rowsAfter fills out. The page that holds the cursor comes first, which shows
// whether the cursor is of this manifest at all.
func (r *Reader) rowsAfter(ctx context.Context, tk *task.Task, set frozen.Set, after string, size int, out *RowPage) error {
	known, more := after == "", false
	var rows []evidence.PageRow
	// The cursor's page, those of size rows, and one that shows whether more follow.
	err := r.frozen.PagesFrom(ctx, set, after, size/tk.PageRows+3, func(_ int, body []byte) (bool, error) {
		var err error
		if rows, err = evidence.DecodePage(body, rows[:0], tk.PageRows); err != nil {
			return false, fmt.Errorf("page of task %s: %w", tk.ID, err)
		}
		for i := range rows {
			switch {
			case rows[i].Key == after && after != "":
				known = true
			case rows[i].Key <= after && after != "":
			case len(out.Rows) == size:
				more = true
				return false, nil
			default:
				out.Rows = append(out.Rows, rows[i])
			}
		}
		return known, nil
	})
	if err != nil {
		return err
	}
	if !known {
		return fault.New(fault.CursorInvalid, "the cursor is of another task").WithField("cursor", "no key of this manifest")
	}
	out.Completed, out.NextCursor = !more, protocol.FormatKey(after)
	if n := len(out.Rows); n > 0 {
		out.NextCursor = protocol.FormatKey(out.Rows[n-1].Key)
	}
	return nil
}
