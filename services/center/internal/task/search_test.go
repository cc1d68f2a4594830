package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/protocol"
)

// The small world: one task, two workers of the center that materialise and
// dispatch, three attempts, one slot that another task may hold, and an
// environment that may do anything at any time. Every world that can be reached
// is visited; every decision in it is the running system's own (Next, Stand,
// Rule), and what the store's statements do besides is written down in
// search_store_test.go.
const (
	maxAttempts = 3
	workers     = 2
)

// The holder of the row's claim token: a worker's number from 1, or
const (
	nobody = 0
	dead   = workers + 1 // a worker that crashed and forgot it
)

// What a worker is doing; it learns that it was superseded only from its write.
type doing byte

const (
	idle doing = iota
	materialising
	dispatching
)

// The grant as the task sees it.
type grant byte

const (
	effective grant = iota
	revoked
	moved // effective again, under a later epoch
)

// row is what the database holds of the task.
type row struct {
	state    protocol.State
	manifest ManifestState
	tries    int
	attempt  int
	holder   int
	over     bool // the claim's or the consumer's lease has run out
	slot     bool
	waiting  byte // dispatched and not run since: 0 no, 1 yes, 2 for too long
	result   protocol.State
	by       int // attempt of the result
}

type world struct {
	row
	grant   grant
	less    int  // by how much a restart lowered the budget
	taken   bool // another task of the consumer holds the slot
	workers [workers]doing
}

// step is one thing that happens, in one transaction or none.
type step struct {
	do      string
	worker  int // from 0
	attempt int
	says    Event
	whole   bool
}

func (s step) String() string {
	switch {
	case s.says != "":
		return fmt.Sprintf("%s %s of attempt %d (whole: %t)", s.do, s.says, s.attempt, s.whole)
	case strings.HasPrefix(s.do, "worker"):
		return fmt.Sprintf("%s (worker %d)", s.do, s.worker+1)
	}
	return s.do
}

// steps are all things that may happen at any time.
var steps = func() (all []step) {
	for w := range workers {
		for _, do := range []string{
			workerTakesManifest, workerAdopts, workerRefuses, workerFails, workerTakesDispatch, workerAccepted, workerNotAccepted, workerCrashes,
		} {
			all = append(all, step{do: do, worker: w})
		}
	}
	for attempt := 1; attempt <= maxAttempts+1; attempt++ {
		for _, says := range []Event{Progressed, Waits, ReportsDone, ReportsPartial, ReportsFailed, ReportsCancel} {
			all = append(all, step{do: report, attempt: attempt, says: says, whole: true})
		}
		all = append(all, step{do: report, attempt: attempt, says: ReportsDone})
	}
	for _, do := range []string{timePasses, patienceEnds, sweepsManifest, sweepsDispatch, sweepsLease, sweepsSpent, sweepsLost, lowers, otherTakes, otherFrees, revokes, regrants, cancels} {
		all = append(all, step{do: do})
	}
	return all
}()

const (
	workerTakesManifest = "worker takes the manifest"
	workerAdopts        = "worker adopts the manifest"
	workerRefuses       = "worker refuses the manifest"
	workerFails         = "worker fails with the manifest"
	workerTakesDispatch = "worker takes the dispatch"
	workerAccepted      = "worker was told accepted"
	workerNotAccepted   = "worker got no or another answer"
	workerCrashes       = "worker crashes"

	report         = "report"
	timePasses     = "the lease runs out"
	patienceEnds   = "it has waited too long"
	sweepsManifest = "sweep of materialisers"
	sweepsDispatch = "sweep of dispatchers"
	sweepsLease    = "sweep of consumers"
	sweepsSpent    = "sweep of spent budgets"
	sweepsLost     = "sweep of lost grants"
	lowers         = "a restart lowers the budget"
	otherTakes     = "another task takes the slot"
	otherFrees     = "another task frees the slot"
	revokes        = "the grant is revoked"
	regrants       = "the grant is given again"
	cancels        = "an operator cancels"
)

// found is one broken promise and the way to it.
type found struct {
	promise string
	trace   []string
}

// search visits every reachable world, breadth first, and stops at the first
// broken promise.
func (m *model) search() (visited int, broken *found) {
	start := world{row: row{state: queued, manifest: ManifestPending}}
	index := map[world]int32{start: 0}
	worlds, from, by := []world{start}, []int32{-1}, []int16{-1}
	var edges [][2]int32   // by anything but an operator and the grant
	var without [][2]int32 // by the center alone: no consumer speaks any more
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
			after, answer, happens := m.apply(before, s)
			if !happens {
				continue
			}
			if promise := broke(before, s, after, answer); promise != "" {
				return len(worlds), &found{promise, append(trace(at, s.String()), fmt.Sprintf("%+v\n→ %+v %+v", before, after, answer))}
			}
			to, known := index[after]
			if !known {
				to = int32(len(worlds))
				index[after] = to
				worlds, from, by = append(worlds, after), append(from, at), append(by, int16(n))
			}
			if to == at || s.do == cancels || s.do == revokes || s.do == regrants || s.do == lowers {
				continue
			}
			edges = append(edges, [2]int32{at, to})
			if s.do != report {
				without = append(without, [2]int32{at, to})
			}
		}
	}
	ends := func(w world) bool { return w.state.Terminal() }
	excused := func(w world) bool { return w.attempt == 0 || w.state.Terminal() || w.grant != effective }
	if at := stuck(worlds, without, ends, ends); at >= 0 {
		return len(worlds), &found{"a task ends though the consumer is silent for ever", trace(at, fmt.Sprintf("%+v", worlds[at]))}
	}
	if at := stuck(worlds, edges, func(w world) bool { return w.state == completed }, excused); at >= 0 {
		return len(worlds), &found{"an open task that was dispatched can still be completed", trace(at, fmt.Sprintf("%+v", worlds[at]))}
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

// broke names the promise that a step broke, "" if none.
func broke(before world, s step, after world, a answer) string {
	for _, p := range promises {
		if !p.holds(before, s, after, a) {
			return p.name
		}
	}
	return ""
}

var promises = []struct {
	name  string
	holds func(before world, s step, after world, a answer) bool
}{
	{"a terminal task never moves", func(b world, _ step, a world, _ answer) bool {
		return !b.state.Terminal() || a.row == b.row
	}},
	{"the attempt rises by one, at a claim, and never beyond its budget", func(b world, s step, a world, _ answer) bool {
		claims := s.do == workerTakesDispatch && a.holder == s.worker+1
		return a.attempt <= maxAttempts && a.tries <= maxAttempts && (!claims && a.attempt == b.attempt ||
			claims && a.attempt == b.attempt+1 && a.attempt <= maxAttempts-b.less)
	}},
	{"only a complete manifest is dispatched", func(_ world, _ step, a world, _ answer) bool {
		return a.attempt == 0 || a.manifest == ManifestComplete
	}},
	{"a superseded worker changes nothing", func(b world, s step, a world, _ answer) bool {
		writes := slices.Contains([]string{workerAdopts, workerRefuses, workerFails, workerAccepted, workerNotAccepted}, s.do)
		return !writes || b.holder == s.worker+1 || a.row == b.row
	}},
	{"nobody is taken over before the lease is over", func(b world, s step, a world, _ answer) bool {
		sweeps := s.do == sweepsManifest || s.do == sweepsDispatch || s.do == sweepsLease
		return !sweeps || b.over || a.row == b.row
	}},
	{"a token lives in QUEUED only, and what is worked has a lease", func(_ world, _ step, a world, _ answer) bool {
		return a.holder == nobody || a.state == queued
	}},
	{"a slot is held if and only if the task is in flight, by one task", func(_ world, _ step, a world, _ answer) bool {
		inFlight := a.state == dispatched || a.state == running || a.state == queued && a.holder != nobody && a.manifest == ManifestComplete
		return a.slot == inFlight && (!a.slot || !a.taken)
	}},
	{"what spent its budget is not queued again", func(b world, _ step, a world, _ answer) bool {
		return !b.slot || a.slot || a.state != queued || a.attempt < maxAttempts-a.less
	}},
	{"the first result stays", func(b world, _ step, a world, _ answer) bool {
		return b.result == "" || a.result == b.result && a.by == b.by
	}},
	{"only a result of the current attempt completes", func(b world, s step, a world, _ answer) bool {
		if a.state != completed && a.state != partial {
			return true
		}
		ended := a.result == a.state && a.by == a.attempt && a.manifest == ManifestComplete
		return ended && (b.state == a.state || s.do == report && s.attempt == b.attempt && (s.whole || a.state == partial))
	}},
	{"a lost grant lets nothing go on", func(b world, s step, a world, _ answer) bool {
		goesOn := s.do == report || s.do == workerTakesDispatch || s.do == workerTakesManifest
		return b.grant == effective || !goesOn || a.row == b.row || a.state == cancelled
	}},
	{"a report of another attempt moves nothing", func(b world, s step, a world, _ answer) bool {
		return s.do != report || s.attempt == b.attempt || a.row == b.row
	}},
	{"an attempt never dispatched is refused", func(b world, s step, _ world, a answer) bool {
		unknown := s.do == report && !b.state.Terminal() && s.attempt > b.attempt
		return unknown == (a.refusal == attemptUnknown)
	}},
	{"a repeated result is a duplicate", func(b world, s step, _ world, a answer) bool {
		own := s.do == report && b.result != "" && b.by == s.attempt
		return own == (a.decision == protocol.CurrentDuplicate) && (!own || a.result == b.result)
	}},
	{"CURRENT_ACCEPTED is said of a result that was stored, or of a lease that was renewed", func(_ world, s step, w world, a answer) bool {
		switch {
		case a.decision != protocol.CurrentAccepted:
			return true
		case s.says == Progressed || s.says == Waits:
			return (w.state == running || w.state == dispatched) && !w.over
		}
		return w.state.Terminal() && w.result == w.state && w.by == s.attempt
	}},
	{"CENTER_TERMINAL is said of an ended task", func(_ world, _ step, w world, a answer) bool {
		return a.decision != protocol.CenterTerminal || w.state.Terminal()
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
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			mutant := production()
			if m.table != nil {
				kept := table
				defer func() { table = kept }()
				table = map[protocol.State]map[Event]rule{completed: {}, partial: {}, failed: {}, cancelled: {}}
				for state, rules := range kept {
					table[state] = maps.Clone(rules)
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
