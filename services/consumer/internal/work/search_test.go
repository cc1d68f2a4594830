package work

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/protocol"
)

// The small world: one row, two workers, three attempts, a manifest of two
// pages, and a center that may say anything at any time: any instruction again,
// any answer to any report, one about something else, or none. Every world that
// can be reached is visited; every decision in it is the running system's own
// (Row.On, Row.Accept, Hear), and what the store and the worker do besides is
// written down in search_store_test.go.
const (
	maxAttempts = 3
	workers     = 2
	lastPage    = 2
	budget      = 1 // retries
	maxTries    = 1 // workers that may die over it
)

// The holder of the row's claim token: a worker's number from 1, or
const (
	nobody = 0
	dead   = workers + 1 // a worker that crashed and forgot it
)

// phase is where a worker is; it learns that it was superseded only from its write.
type phase byte

const (
	idle      phase = iota
	scanning        // between two pages
	telling         // a progress report is out
	reporting       // the report is frozen, not out
	sending         // the report is out
)

type worker struct {
	phase   phase
	attempt int // as it believes it to be
}

// row is what the database holds.
type row struct {
	Row
	holder int
	over   bool // the lease has run out
	page   int  // the checkpoint
	frozen int  // attempt that the stored report is signed under
}

type world struct {
	row
	newest  int // the newest instruction that arrived
	workers [workers]worker
	told    int // attempt of a WAITING report that is out, 0 for none
}

// plain forgets what makes no difference: what a superseded worker believes, and
// which older attempt a waiting row was reported under.
func (w world) plain() world {
	for i := range w.workers {
		if w.holder != i+1 {
			w.workers[i].attempt = 0
		}
	}
	if w.told != w.Wanted && w.told != 0 {
		w.told = maxAttempts + 1
	}
	return w
}

// sorted forgets which worker is which.
func (w world) sorted() world {
	a, b := w.workers[0], w.workers[1]
	if a.phase > b.phase || a.phase == b.phase && (a.attempt > b.attempt || a == b && w.holder == 2) {
		w.workers[0], w.workers[1] = b, a
		switch w.holder {
		case 1:
			w.holder = 2
		case 2:
			w.holder = 1
		}
	}
	return w
}

// step is one thing that happens, in one transaction or none.
type step struct {
	do      string
	worker  int // from 0
	attempt int
	answer  reply
}

// reply is what the center answers; the zero reply is none.
type reply struct {
	decision protocol.Decision
	state    protocol.State
	echo     int    // added to the report's attempt
	task     string // instead of the report's task
	refusal  bool   // it does not know the task or the attempt
}

func (r reply) valid() bool { return r.decision != "" && r.echo == 0 && r.task == "" }

func (s step) String() string {
	switch s.do {
	case instructed:
		return fmt.Sprintf("%s %d", s.do, s.attempt)
	case workerHears:
		return fmt.Sprintf("%s %+v (worker %d)", s.do, s.answer, s.worker+1)
	case waiterHears, parkedHears:
		return fmt.Sprintf("%s %+v", s.do, s.answer)
	}
	return fmt.Sprintf("%s (worker %d)", s.do, s.worker+1)
}

const (
	instructed = "an instruction arrives, attempt"

	workerClaims    = "worker claims"
	workerTells     = "worker reports RUNNING"
	workerDonePage  = "worker finishes a page"
	workerFailsPage = "worker fails a page"
	workerFreezes   = "worker freezes the report"
	workerSends     = "worker sends the report"
	workerHears     = "worker hears"
	workerGivesBack = "worker gives back"
	workerCrashes   = "worker crashes"
	workerGivesUp   = "worker gives up what killed the others"

	waiterTells = "a waiting row is reported"
	waiterHears = "a waiting row hears"
	parkedHears = "a parked row asks, and hears that its task has ended"
	timePasses  = "the lease runs out"
	sweeps      = "sweep"
)

var steps = func() (all []step) {
	replies := []reply{
		{},
		{refusal: true},
		{decision: "UNHEARD_OF", state: protocol.Completed},
		{decision: protocol.CurrentAccepted, state: protocol.Completed},
		{decision: protocol.CurrentAccepted, state: protocol.Running},
		{decision: protocol.CurrentDuplicate, state: protocol.Partial},
		{decision: protocol.CurrentDuplicate},
		{decision: protocol.CenterTerminal, state: protocol.Cancelled},
		{decision: protocol.CenterTerminal, state: protocol.Dispatched},
		{decision: protocol.StaleRetry, state: protocol.Running},
	}
	for _, r := range slices.Clone(replies[3:]) {
		later, other := r, r
		later.echo, other.task = 1, "another task"
		replies = append(replies, later, other)
	}
	for n := 1; n <= maxAttempts; n++ {
		all = append(all, step{do: instructed, attempt: n})
	}
	for w := range workers {
		for _, do := range []string{workerClaims, workerTells, workerDonePage, workerFailsPage, workerFreezes, workerSends, workerGivesBack, workerGivesUp, workerCrashes} {
			all = append(all, step{do: do, worker: w})
		}
		for _, r := range replies {
			all = append(all, step{do: workerHears, worker: w, answer: r})
		}
	}
	for _, r := range replies {
		all = append(all, step{do: waiterHears, answer: r})
	}
	for _, end := range []protocol.State{protocol.Completed, protocol.Partial, protocol.Failed, protocol.Cancelled} {
		all = append(all, step{do: parkedHears, answer: reply{state: end}})
	}
	for _, do := range []string{waiterTells, timePasses, sweeps} {
		all = append(all, step{do: do})
	}
	return all
}()

// found is one broken promise and the way to it.
type found struct {
	promise string
	trace   []string
}

// search visits every reachable world, breadth first, and stops at the first
// broken promise.
func (m *model) search() (visited int, broken *found) {
	index := map[world]int32{{}: 0}
	worlds, from, by := []world{{}}, []int32{-1}, []int16{-1}
	var without [][2]int32 // edges without a new instruction
	trace := func(at int32, last string) []string {
		path := []string{last}
		for ; from[at] >= 0; at = from[at] {
			path = append(path, steps[by[at]].String())
		}
		slices.Reverse(path)
		return path
	}
	for at := int32(0); int(at) < len(worlds); at++ {
		before := worlds[at]
		for n, s := range steps {
			after, happens := m.apply(before, s)
			if !happens {
				continue
			}
			after = after.plain()
			if promise := broke(before, s, after); promise != "" {
				return len(worlds), &found{promise, append(trace(at, s.String()), fmt.Sprintf("%+v\n→ %+v", before, after))}
			}
			after = after.sorted()
			to, known := index[after]
			if !known {
				to = int32(len(worlds))
				index[after] = to
				worlds, from, by = append(worlds, after), append(from, at), append(by, int16(n))
			}
			if to != at && s.do != instructed {
				without = append(without, [2]int32{at, to})
			}
		}
	}
	ended := func(w world) bool { return w.State.Ended() }
	rests := func(w world) bool { return w.State == "" || w.Tries >= maxTries }
	if at := stuck(worlds, without, ended, rests); at >= 0 {
		return len(worlds), &found{"an open row can still end", trace(at, fmt.Sprintf("%+v", worlds[at]))}
	}
	return len(worlds), nil
}

// stuck gives the first world that no edge leads to a goal from, -1 if there is
// none; excused worlds need not get there.
func stuck(worlds []world, edges [][2]int32, goal, excused func(world) bool) int32 {
	back := make([][]int32, len(worlds))
	for _, e := range edges {
		back[e[1]] = append(back[e[1]], e[0])
	}
	reaches := make([]bool, len(worlds))
	var queue []int32
	for i, w := range worlds {
		if goal(w) {
			reaches[i] = true
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, b := range back[at] {
			if !reaches[b] {
				reaches[b] = true
				queue = append(queue, b)
			}
		}
	}
	for i, w := range worlds {
		if !reaches[i] && !excused(w) {
			return int32(i)
		}
	}
	return -1
}

func broke(before world, s step, after world) string {
	for _, p := range promises {
		if !p.holds(before, s, after) {
			return p.name
		}
	}
	return ""
}

var promises = []struct {
	name  string
	holds func(b world, s step, a world) bool
}{
	{"an ended row moves by a newer instruction only", func(b world, s step, a world) bool {
		return !b.State.Ended() || a.row == b.row || s.do == instructed && s.attempt > b.Wanted
	}},
	{"a newer instruction revives a parked row", func(b world, s step, a world) bool {
		return b.State != Parked || s.do != instructed || s.attempt <= b.Wanted || a.State == Queued
	}},
	{"a superseded worker changes nothing", func(b world, s step, a world) bool {
		writes := strings.HasPrefix(s.do, "worker") && s.do != workerClaims && s.do != workerCrashes
		return !writes || b.holder == s.worker+1 || a.row == b.row
	}},
	{"nobody is taken over or disturbed before the lease is over", func(b world, s step, a world) bool {
		others := s.do == sweeps || s.do == instructed || s.do == waiterHears
		return !others || b.holder == nobody || b.over || a.holder == b.holder && a.State == b.State && a.Attempt == b.Attempt
	}},
	{"only an instruction's number is adopted, and no attempt falls", func(b world, _ step, a world) bool {
		return a.Attempt >= b.Attempt && a.Attempt <= a.Wanted && a.Wanted == a.newest
	}},
	{"what waits to be reported is not scanned again", func(b world, _ step, a world) bool {
		return b.State != Reporting || a.State == Reporting || a.State == Parked || a.State.Ended()
	}},
	{"the checkpoint never goes back, and moves under a claim only", func(b world, _ step, a world) bool {
		return a.page == b.page || a.page > b.page && b.State == Running && b.holder != nobody
	}},
	{"a row ends only as the center said about the very report", func(b world, s step, a world) bool {
		if b.State.Ended() || !a.State.Ended() {
			return true
		}
		r := s.answer
		if s.do == parkedHears {
			return a.State == State(r.state)
		}
		said := r.decision == protocol.CurrentDuplicate || r.decision == protocol.CenterTerminal ||
			r.decision == protocol.CurrentAccepted && s.do == workerHears && b.workers[s.worker].phase == sending
		return r.valid() && said && a.State == State(r.state)
	}},
	{"a report goes out under the attempt it is signed for", func(b world, s step, _ world) bool {
		return s.do != workerSends || b.holder != s.worker+1 || b.frozen == b.Attempt
	}},
	{"retries stay within their budget, and a newer instruction starts them anew", func(b world, s step, a world) bool {
		newer := s.do == instructed && b.State != "" && s.attempt > b.Wanted
		return a.Retries <= budget && (!newer || a.Retries == 0 && a.Tries == 0)
	}},
	{"RUNNING has a holder, and nothing at rest has one", func(_ world, _ step, a world) bool {
		return (a.State != Running || a.holder != nobody) && (a.holder == nobody || a.State == Running || a.State == Reporting)
	}},
	{"an answer about an older attempt moves no waiting row", func(b world, s step, a world) bool {
		return s.do != waiterHears || b.told == b.Wanted || a.row == b.row
	}},
	{"STALE_RETRY is followed by the newer instruction, or by rest", func(b world, s step, a world) bool {
		if s.do != workerHears || s.answer.decision != protocol.StaleRetry || !s.answer.valid() || b.holder != s.worker+1 {
			return true
		}
		if b.Wanted > b.Attempt {
			return a.State == b.State && a.Attempt == b.Wanted && a.holder == b.holder
		}
		return a.State == Parked && a.Attempt == b.Attempt
	}},
	{"a claim adopts the newest instruction", func(_ world, s step, a world) bool {
		return s.do != workerClaims || a.Attempt == a.Wanted
	}},
	{"a report without a valid answer is kept", func(b world, s step, a world) bool {
		sent := s.do == workerHears && b.workers[s.worker].phase == sending && !s.answer.valid() && !s.answer.refusal
		return !sent || a.State == b.State || a.State == Parked && b.Retries == budget
	}},
}

func TestSearch(t *testing.T) {
	visited, broken := production().search()
	t.Logf("%d worlds visited, %d steps tried in each", visited, len(steps))
	if broken != nil {
		t.Fatalf("%s:\n%s", broken.promise, strings.Join(broken.trace, "\n"))
	}
	if visited < 2000 {
		t.Errorf("only %d worlds: the search is not what it was", visited)
	}
}

// TestSearchCatchesMutants: a search that finds nothing proves something only if
// it finds what is wrong.
func TestSearchCatchesMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			mutant := production()
			if m.table != nil {
				kept := next
				defer func() { next = kept }()
				next = map[State]map[Event]State{}
				for state, rules := range kept {
					next[state] = maps.Clone(rules)
				}
				m.table()
			}
			if m.change != nil {
				m.change(mutant)
			}
			visited, broken := mutant.search()
			if broken == nil {
				t.Fatalf("not caught in %d worlds", visited)
			}
			if broken.promise != m.breaks {
				t.Errorf("it broke %q, want %q:\n%s", broken.promise, m.breaks, strings.Join(broken.trace, "\n"))
			}
			t.Logf("caught after %d worlds and %d steps: %s", visited, len(broken.trace)-1, broken.promise)
		})
	}
}
