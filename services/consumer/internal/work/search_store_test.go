package work

import "lockstep.dev/pkg/protocol"

// model is the store and the worker as they are, over the decisions of this
// package. Its switches are what the mutants turn.
type model struct {
	on     func(r Row, e Event, budget int) (Row, error)
	accept func(r Row, attempt int, held bool) (Row, Event, error)
	hear   func(sent Sent, heard Heard) (Event, error)

	anyToken    bool // a worker's write does not name its token
	anyLease    bool // the sweep takes live claims too
	noSweep     bool // dead workers are never swept
	startsOver  bool // a newer instruction forgets the checkpoint
	oldReport   bool // a report is sent as it was frozen, whatever was adopted since
	anyAnswer   bool // a waiting row takes an answer about any attempt
	adoptNumber bool // STALE_RETRY's own number is adopted
	lostIsDone  bool // a report without an answer counts as accepted
}

func production() *model { return &model{on: Row.On, accept: Row.Accept, hear: Hear} }

const task = "the task"

func (m *model) apply(w world, s step) (world, bool) {
	switch s.do {
	case instructed:
		return m.instructed(w, s)
	case workerClaims:
		return m.claim(w, s)
	case waiterTells:
		if w.State != Queued || w.told == w.Wanted {
			return w, false
		}
		w.told = w.Wanted
		return w, true
	case waiterHears:
		return m.untouched(w, s)
	case parkedHears:
		e, _ := EndOf(s.answer.state)
		after, err := m.on(w.Row, e, budget)
		if w.State != Parked || err != nil {
			return w, false
		}
		w.Row = after
		return w, true
	case timePasses:
		happens := w.holder != nobody && !w.over
		w.over = w.over || happens
		return w, happens
	case sweeps:
		if w.holder == nobody || !w.over && !m.anyLease || m.noSweep {
			return w, false
		}
		after, err := m.on(w.Row, LeaseExpired, budget)
		if err != nil {
			return w, false
		}
		after.Tries = min(after.Tries, maxTries+1) // more of them are all the same
		w.Row, w.holder, w.over = after, nobody, false
		return w, true
	}
	return m.workerStep(w, s)
}

func (m *model) instructed(w world, s step) (world, bool) {
	w.newest = max(w.newest, s.attempt)
	if w.State == "" {
		w.Row = Row{State: Queued, Attempt: s.attempt, Wanted: s.attempt}
		return w, true
	}
	after, e, err := m.accept(w.Row, s.attempt, w.holder != nobody && !w.over)
	if err != nil {
		return w, false
	}
	w.Row = after
	if e == AcceptedNewer {
		w.holder, w.over = nobody, false
		if m.startsOver {
			w.page = 0
		}
	}
	return w, true
}

func (m *model) claim(w world, s step) (world, bool) {
	if w.workers[s.worker].phase != idle || w.holder != nobody || w.State != Queued && w.State != Reporting {
		return w, false
	}
	after, err := m.on(w.Row, Claimed, budget)
	if err != nil {
		return w, false
	}
	w.Row, w.holder, w.over = after, s.worker+1, false
	w.workers[s.worker] = worker{scanning, after.Attempt}
	if after.State == Reporting {
		w.workers[s.worker].phase = reporting
	}
	return w, true
}

// untouched is the answer to a WAITING report.
func (m *model) untouched(w world, s step) (world, bool) {
	if w.told == 0 {
		return w, false
	}
	told := w.told
	w.told = 0
	e, err := m.meaning(told, protocol.Running, s.answer)
	if err != nil || e == "" || w.State != Queued || w.Wanted != told && !m.anyAnswer {
		return w, true
	}
	r := w.Row
	r.Attempt = r.Wanted
	if after, err := m.on(r, e, budget); err == nil {
		w.Row = after
	}
	return w, true
}

func (m *model) meaning(attempt int, sent protocol.State, r reply) (Event, error) {
	switch {
	case r.refusal:
		return Unknown, nil
	case r.decision == "":
		return "", ErrNoAnswer
	}
	heard := Heard{TaskID: task, Attempt: attempt + r.echo, Decision: r.decision, TaskState: r.state, ResultState: r.state}
	if r.task != "" {
		heard.TaskID = r.task
	}
	return m.hear(Sent{TaskID: task, Attempt: attempt, State: sent}, heard)
}

// workerStep is what the worker does with what it holds, or believes it holds.
func (m *model) workerStep(w world, s step) (world, bool) {
	me := w.workers[s.worker]
	overdue := w.Tries > maxTries && w.holder == s.worker+1
	switch {
	case s.do == workerCrashes && me.phase != idle:
		w.workers[s.worker] = worker{}
		if w.holder == s.worker+1 {
			w.holder = dead
		}
		return w, true
	case s.do == workerTells && me.phase == scanning && !overdue:
		w.workers[s.worker].phase = telling
		return w, true
	case s.do == workerDonePage && me.phase == scanning && !overdue && w.page < lastPage:
		return m.write(w, s, RoundDone), true
	case s.do == workerFailsPage && me.phase == scanning && !overdue:
		return m.write(w, s, RoundFailed), true
	case s.do == workerGivesBack && (me.phase == scanning || me.phase == reporting) && !overdue:
		return m.write(w, s, GivenBack), true
	case s.do == workerFreezes && me.phase == scanning, s.do == workerFreezes && me.phase == reporting && w.frozen != me.attempt && !m.oldReport && !overdue:
		return m.write(w, s, Frozen), true
	case s.do == workerGivesUp && me.phase == reporting && overdue:
		return m.write(w, s, RetriesSpent), true
	case s.do == workerSends && me.phase == reporting && (w.frozen == me.attempt || m.oldReport):
		w.workers[s.worker].phase = sending
		return w, true
	case s.do == workerHears && (me.phase == telling || me.phase == sending):
		return m.hears(w, s), true
	}
	return w, false
}

func (m *model) hears(w world, s step) world {
	me := &w.workers[s.worker]
	sent, none := protocol.Running, RoundFailed
	if me.phase == sending {
		sent, none = protocol.Completed, AckLost
	}
	e, err := m.meaning(me.attempt, sent, s.answer)
	switch {
	case err != nil && m.lostIsDone && me.phase == sending:
		return m.write(w, s, EndCompleted)
	case err != nil:
		return m.write(w, s, none)
	case e == "":
		me.phase = scanning
		return w
	case e == Stale && m.adoptNumber && w.holder == s.worker+1:
		w.Attempt, w.Wanted = min(w.Attempt+1, maxAttempts), max(w.Wanted, min(w.Attempt+1, maxAttempts))
		me.attempt = w.Attempt
		return w
	}
	return m.write(w, s, e)
}

// write is a worker's step under its claim; fenced, it drops the work.
func (m *model) write(w world, s step, e Event) world {
	me := &w.workers[s.worker]
	after, err := m.on(w.Row, e, budget)
	held := w.holder == s.worker+1 && (w.State == Running || w.State == Reporting)
	if err != nil || !held && !m.anyToken {
		*me = worker{}
		return w
	}
	w.Row = after
	if e == RoundDone {
		w.page++
	}
	if e == Frozen {
		w.frozen = after.Attempt
	}
	keeps := (e == RoundDone || e == Stale || e == Frozen) && (after.State == Running || after.State == Reporting)
	if !keeps {
		*me, w.holder, w.over = worker{}, nobody, false
		return w
	}
	*me = worker{scanning, after.Attempt}
	if after.State == Reporting {
		me.phase = reporting
	}
	return w
}

// mutant is one way to be wrong, and the promise that finds it.
type mutant struct {
	name   string
	breaks string
	table  func() // changes a copy of the table
	change func(*model)
}

const (
	ended      = "an ended row moves by a newer instruction only"
	superseded = "a superseded worker changes nothing"
	disturbed  = "nobody is taken over or disturbed before the lease is over"
	numbers    = "only an instruction's number is adopted, and no attempt falls"
	rescans    = "what waits to be reported is not scanned again"
	checkpoint = "the checkpoint never goes back, and moves under a claim only"
	endings    = "a row ends only as the center said about the very report"
	budgets    = "retries stay within their budget, and a newer instruction starts them anew"
	open       = "an open row can still end"
	revived    = "a newer instruction revives a parked row"
)

var mutants = []mutant{
	{name: "the token is not checked", breaks: superseded, change: func(m *model) { m.anyToken = true }},
	{name: "the sweep does not look at leases", breaks: disturbed, change: func(m *model) { m.anyLease = true }},
	{name: "dead workers are not swept", breaks: open, change: func(m *model) { m.noSweep = true }},
	{name: "an echo of another attempt is taken", breaks: endings, change: func(m *model) {
		m.hear = func(sent Sent, heard Heard) (Event, error) { heard.Attempt = sent.Attempt; return Hear(sent, heard) }
	}},
	{name: "an echo of another task is taken", breaks: endings, change: func(m *model) {
		m.hear = func(sent Sent, heard Heard) (Event, error) { heard.TaskID = sent.TaskID; return Hear(sent, heard) }
	}},
	{name: "an accepted progress report ends the row", breaks: endings, change: func(m *model) {
		m.hear = func(sent Sent, heard Heard) (Event, error) { sent.State = protocol.Completed; return Hear(sent, heard) }
	}},
	{name: "a report without an answer counts as accepted", breaks: endings, change: func(m *model) { m.lostIsDone = true }},
	{name: "the number is adopted without its instruction", breaks: numbers, change: func(m *model) { m.adoptNumber = true }},
	{name: "the checkpoint is forgotten with a newer instruction", breaks: checkpoint, change: func(m *model) { m.startsOver = true }},
	{name: "a report goes out under the attempt it was frozen for", breaks: "a report goes out under the attempt it is signed for", change: func(m *model) { m.oldReport = true }},
	{name: "an answer about an older attempt moves a waiting row", breaks: "an answer about an older attempt moves no waiting row", change: func(m *model) { m.anyAnswer = true }},
	{name: "an instruction seen before reopens the row", breaks: ended, change: func(m *model) {
		m.accept = func(r Row, attempt int, held bool) (Row, Event, error) {
			if attempt != r.Wanted || !r.State.Ended() {
				return r.Accept(attempt, held)
			}
			after, err := r.On(AcceptedNewer, 0)
			return after, AcceptedNewer, err
		}
	}},
	{name: "a run under a valid lease is disturbed", breaks: disturbed, change: func(m *model) {
		m.accept = func(r Row, attempt int, _ bool) (Row, Event, error) { return r.Accept(attempt, false) }
	}},
	{name: "the retry budget is ignored", breaks: budgets, change: func(m *model) {
		m.on = func(r Row, e Event, _ int) (Row, error) { return r.On(e, 1<<10) }
	}},
	{name: "an ended row hears the center", breaks: ended, table: func() { next[Partial][AcceptedSame] = Queued }},
	{name: "what is frozen is scanned again", breaks: rescans, table: func() { next[Reporting][AcceptedNewer] = Queued }},
	{name: "a claim of a report scans again", breaks: rescans, table: func() { next[Reporting][Claimed] = Running }},
	{name: "a parked row never hears that its task has ended", breaks: "an open row can still end", table: func() {
		delete(next[Parked], EndFailed)
		delete(next[Parked], EndCancelled)
		delete(next[Parked], EndPartial)
		delete(next[Parked], EndCompleted)
	}},
	{name: "a parked row is not revived", breaks: revived, table: func() { next[Parked][AcceptedNewer] = Parked }},
	{
		name: "STALE_RETRY parks although a newer instruction is there", breaks: "STALE_RETRY is followed by the newer instruction, or by rest",
		table: func() { next[Running][StaleAdopt] = Parked },
	},
	{name: "a claim does not adopt the newest instruction", breaks: "a claim adopts the newest instruction", change: func(m *model) {
		m.on = func(r Row, e Event, budget int) (Row, error) {
			after, err := r.On(e, budget)
			if e == Claimed {
				after.Attempt = r.Attempt
			}
			return after, err
		}
	}},
}
