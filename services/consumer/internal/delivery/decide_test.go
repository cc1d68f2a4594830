package delivery

import (
	"testing"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/store"
)

func TestDecide(t *testing.T) {
	row := func(revision int64, hash byte, deleted bool) *evidence.Row {
		return &evidence.Row{Key: "k", Revision: revision, Hash: canon.Hash{hash}, Deleted: deleted}
	}
	mark := func(epoch, revision int64, retired bool) *store.Mark {
		return &store.Mark{Key: "k", CenterEpoch: epoch, Revision: revision, Retired: retired}
	}
	say := func(epoch, revision int64) word { return word{epoch: epoch, row: *row(revision, 1, false)} }
	for name, c := range map[string]struct {
		known known
		word  word
		want  store.Received
		code  fault.Reason
	}{
		"nothing known":                             {known{}, say(1, 5), store.Applied, ""},
		"lower than the row":                        {known{local: row(6, 2, false), mark: mark(1, 6, false)}, say(1, 5), store.Older, ""},
		"lower than the row, of a newer epoch":      {known{local: row(6, 2, false), mark: mark(1, 6, false)}, say(2, 5), store.Applied, ""},
		"the same, lower than said, newer epoch":    {known{local: row(5, 1, false), mark: mark(1, 6, false)}, say(2, 5), store.Duplicate, ""},
		"lower than nobody said, of a newer epoch":  {known{local: row(7, 2, false), mark: mark(1, 6, false)}, say(2, 5), store.Older, ""},
		"lower than the row, nobody marked it":      {known{local: row(6, 2, false)}, say(2, 5), store.Older, ""},
		"the same":                                  {known{local: row(5, 1, false), mark: mark(1, 5, false)}, say(1, 5), store.Duplicate, ""},
		"the same, of a row nobody marked":          {known{local: row(5, 1, false)}, say(1, 5), store.Duplicate, ""},
		"same revision, other hash":                 {known{local: row(5, 2, false), mark: mark(1, 5, false)}, say(1, 5), store.Conflict, ""},
		"same revision, a tombstone here":           {known{local: row(5, 1, true), mark: mark(1, 5, false)}, say(1, 5), store.Conflict, ""},
		"same revision, other hash, newer epoch":    {known{local: row(5, 2, false), mark: mark(1, 5, false)}, say(2, 5), store.Applied, ""},
		"higher than the row":                       {known{local: row(4, 2, false), mark: mark(1, 4, false)}, say(1, 5), store.Applied, ""},
		"higher than the row, below what was said":  {known{local: row(4, 2, false), mark: mark(1, 6, false)}, say(1, 5), "", fault.RollbackDetected},
		"below what an older epoch said":            {known{local: row(4, 2, false), mark: mark(1, 6, false)}, say(2, 5), store.Applied, ""},
		"of an older epoch":                         {known{local: row(4, 2, false), mark: mark(2, 1, false)}, say(1, 5), "", fault.RollbackDetected},
		"of an older epoch, the same value":         {known{local: row(5, 1, false), mark: mark(2, 5, false)}, say(1, 5), "", fault.RollbackDetected},
		"no row, below what was said":               {known{mark: mark(1, 6, false)}, say(1, 5), "", fault.RollbackDetected},
		"no row, just what was said":                {known{mark: mark(1, 5, false)}, say(1, 5), store.Applied, ""},
		"retired, below the floor":                  {known{local: row(4, 2, false), retired: true, mark: mark(1, 6, true)}, say(1, 5), store.Retired, ""},
		"retired, at the floor":                     {known{local: row(4, 2, false), retired: true, mark: mark(1, 5, true)}, say(1, 5), store.Retired, ""},
		"retired, above the floor":                  {known{local: row(4, 2, false), retired: true, mark: mark(1, 4, true)}, say(1, 5), store.Applied, ""},
		"retired, of a newer epoch":                 {known{local: row(9, 2, false), retired: true, mark: mark(1, 9, true)}, say(2, 5), store.Applied, ""},
		"retired by the host, not above the row":    {known{local: row(5, 2, false), retired: true}, say(1, 5), store.Retired, ""},
		"retired by the host, above the row":        {known{local: row(4, 2, false), retired: true}, say(1, 5), store.Applied, ""},
		"retired and deleted since, at the floor":   {known{mark: mark(1, 5, true)}, say(1, 5), store.Retired, ""},
		"brought back by an operator, at the floor": {known{local: row(4, 2, false), mark: mark(1, 5, true)}, say(1, 5), store.Retired, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, code := decide(c.known, c.word)
			if got != c.want || code != c.code {
				t.Errorf("got %q %q, want %q %q", got, code, c.want, c.code)
			}
		})
	}
}

// Whatever is known: what is applied is above it, and what is equal or lower
// changes nothing.
func TestDecideNeverLowers(t *testing.T) {
	const most = 4
	for n := range most * most * most * most * 2 * 2 * 2 {
		pick := func(of int) int64 {
			v := int64(n % of)
			n /= of
			return v
		}
		w := word{epoch: 1 + pick(most), row: evidence.Row{Revision: 1 + pick(most), Hash: canon.Hash{1}}}
		k := known{local: &evidence.Row{Revision: 1 + pick(most), Hash: canon.Hash{2}}, retired: pick(2) == 1}
		if pick(2) == 1 {
			k.mark = &store.Mark{CenterEpoch: 2, Revision: 1 + pick(most), Retired: pick(2) == 1}
		}
		got, _ := decide(k, w)
		if got != store.Applied {
			continue
		}
		of := k.mark != nil && k.mark.CenterEpoch < w.epoch && k.local.Revision <= k.mark.Revision // a row of an older epoch
		if !k.retired && !of && w.row.Revision <= k.local.Revision {
			t.Fatalf("%+v over live %+v", w, k.local)
		}
		if m := k.mark; m != nil && (w.epoch < m.CenterEpoch || w.epoch == m.CenterEpoch && w.row.Revision < m.Revision) {
			t.Fatalf("%+v under the mark %+v", w, m)
		}
	}
}
