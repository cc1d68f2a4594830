package task

import "lockstep.dev/pkg/protocol"

// model is the store as its statements are, over the decisions of this
// package. Its switches are what the mutants turn.
type model struct {
	stand func(state protocol.State, attempt, reported int) Standing
	rule  func(s Standing, from protocol.State, said Said, f Facts) Ruling

	anyToken      bool // a worker's write does not name its token
	anyLease      bool // the sweep takes live claims and leases too
	keepSlot      bool // leaving does not free the slot
	keepToken     bool // a report does not end a dispatcher's claim
	blindClaim    bool // a claim does not look at the grant
	blindReport   bool // a report does not look at the grant
	forgetResult  bool // a result is not stored
	replaceResult bool // a later result replaces the first
	noSweep       bool // dead dispatchers are never swept
	keepSpent     bool // a queued task without attempts is left alone
	freeAttempt   bool // a claim spends no attempt
	anyAttempt    bool // a claim takes a task whose attempts are spent
	anyManifest   bool // a claim takes a task without a manifest
}

func production() *model { return &model{stand: Stand, rule: Rule} }

// answer is what a report got.
type answer struct {
	decision protocol.Decision
	refusal  string
	result   protocol.State
}

func (m *model) facts(w world, slotFree bool) Facts {
	return Facts{
		Manifest: w.manifest, Tries: w.tries + 1, Attempt: w.attempt, MaxAttempts: maxAttempts - w.less,
		HasSlot: w.slot || slotFree, TooOld: w.waiting == 2,
	}
}

// move is the statement that carries out a verdict.
func (m *model) move(w world, on Event, to protocol.State) world {
	inFlight := to == dispatched || to == running
	w.slot = inFlight || m.keepSlot && w.slot
	switch {
	case to == dispatched && w.waiting == 0:
		w.waiting = 1
	case to != dispatched && to != queued:
		w.waiting = 0
	}
	if on == MaterialiseTrouble {
		w.tries++
	}
	if to == failed && w.manifest == ManifestPending {
		w.manifest = ManifestFailed
	}
	w.state, w.over = to, false
	if !m.keepToken {
		w.holder = nobody
	}
	return w
}

func (m *model) holds(w world, s step) bool { return m.anyToken || w.holder == s.worker+1 }

// apply makes a step happen; happens is false where it can't.
func (m *model) apply(w world, s step) (after world, a answer, happens bool) {
	if s.do == report {
		after, a = m.report(w, s)
		return after, a, true
	}
	if after, happens = m.workerStep(w, s); happens {
		return after, a, true
	}
	after, happens = m.outside(w, s)
	return after, a, happens
}

func (m *model) workerStep(w world, s step) (world, bool) {
	job := w.workers[s.worker]
	done := func(after world) (world, bool) {
		after.workers[s.worker] = idle
		return after, true
	}
	switch s.do {
	case workerTakesManifest:
		if job != idle || w.state != queued || w.manifest != ManifestPending || w.holder != nobody {
			return w, false
		}
		return m.take(w, s, MaterialiserTakes, materialising)
	case workerTakesDispatch:
		fits := w.manifest == ManifestComplete && w.attempt < maxAttempts-w.less
		if m.anyAttempt || m.anyManifest {
			fits = (w.manifest == ManifestComplete || m.anyManifest) && (w.attempt < maxAttempts-w.less || m.anyAttempt)
		}
		if job != idle || w.state != queued || w.holder != nobody || !fits || w.taken {
			return w, false
		}
		return m.take(w, s, DispatcherTakes, dispatching)
	case workerAdopts:
		if job != materialising {
			return w, false
		}
		if w.state == queued && w.manifest == ManifestPending && m.holds(w, s) {
			w.manifest, w.holder, w.over = ManifestComplete, nobody, false
		}
		return done(w)
	case workerRefuses, workerFails:
		if job != materialising {
			return w, false
		}
		return done(m.conclude(w, s, map[string]Event{workerRefuses: MaterialiseRefused, workerFails: MaterialiseTrouble}[s.do], ManifestPending))
	case workerAccepted, workerNotAccepted:
		if job != dispatching {
			return w, false
		}
		return done(m.conclude(w, s, map[string]Event{workerAccepted: Accepted, workerNotAccepted: NotAccepted}[s.do], ManifestComplete))
	case workerCrashes:
		if job == idle {
			return w, false
		}
		if w.holder == s.worker+1 {
			w.holder = dead
		}
		return done(w)
	}
	return w, false
}

// take is a claim: the grant is looked at under the row's lock, then the table.
func (m *model) take(w world, s step, on Event, job doing) (world, bool) {
	if w.grant != effective && !m.blindClaim {
		return m.lose(w)
	}
	if _, ok := Next(w.state, on, m.facts(w, !w.taken)); !ok {
		return w, false
	}
	w.holder, w.over, w.workers[s.worker] = s.worker+1, false, job
	if on == DispatcherTakes {
		w.slot = true
		if !m.freeAttempt {
			w.attempt++
		}
	}
	return w, true
}

// conclude is a write under a claim of the site whose rows have that manifest.
func (m *model) conclude(w world, s step, on Event, held ManifestState) world {
	v, ok := Next(w.state, on, m.facts(w, false))
	if !ok || w.state != queued || w.manifest != held || !m.holds(w, s) {
		return w
	}
	after := m.move(w, on, v.To)
	after.holder = nobody
	return after
}

func (m *model) lose(w world) (world, bool) {
	v, ok := Next(w.state, GrantLost, Facts{})
	if !ok {
		return w, false
	}
	return m.move(w, GrantLost, v.To), true
}

func (m *model) outside(w world, s step) (world, bool) {
	leased := w.state == dispatched || w.state == running
	claimed := w.state == queued && w.holder != nobody
	switch s.do {
	case timePasses:
		happens := (leased || claimed) && !w.over
		w.over = w.over || happens
		return w, happens
	case patienceEnds:
		happens := w.waiting == 1
		if happens {
			w.waiting = 2
		}
		return w, happens
	case sweepsManifest:
		return m.sweep(w, MaterialiseTrouble, claimed && w.manifest == ManifestPending)
	case sweepsDispatch:
		return m.sweep(w, ClaimLapsed, claimed && w.manifest == ManifestComplete && !m.noSweep)
	case sweepsLease:
		return m.sweep(w, LeaseExpired, leased)
	case lowers:
		happens := w.less == 0
		w.less = 1
		return w, happens
	case sweepsSpent:
		spent := w.state == queued && w.manifest == ManifestComplete && w.holder == nobody && w.attempt >= maxAttempts-w.less
		w.over = true // nothing is held, so nothing is taken over
		after, happens := m.sweep(w, ClaimLapsed, spent && !m.keepSpent)
		return after, happens
	case sweepsLost:
		if w.grant == effective {
			return w, false
		}
		return m.lose(w)
	case otherTakes:
		happens := !w.slot && !w.taken
		w.taken = w.taken || happens
		return w, happens
	case otherFrees:
		happens := w.taken
		w.taken = false
		return w, happens
	case revokes:
		happens := w.grant != revoked
		w.grant = revoked
		return w, happens
	case regrants:
		happens := w.grant == revoked
		if happens {
			w.grant = moved
		}
		return w, happens
	case cancels:
		v, ok := Next(w.state, OperatorCancels, Facts{})
		if !ok {
			return w, false
		}
		return m.move(w, OperatorCancels, v.To), true
	}
	return w, false
}

func (m *model) sweep(w world, on Event, fits bool) (world, bool) {
	if !fits || !w.over && !m.anyLease {
		return w, false
	}
	v, ok := Next(w.state, on, m.facts(w, false))
	if !ok {
		return w, false
	}
	after := m.move(w, on, v.To)
	after.holder = nobody
	return after, true
}

// report is the handler: it reads what the standing asks for and carries out
// the ruling.
func (m *model) report(w world, s step) (world, answer) {
	standing := m.stand(w.state, w.attempt, s.attempt)
	said := Said{Event: s.says, Whole: s.whole}
	f := Facts{}
	switch standing {
	case OfEnded:
		said.Own = w.result != "" && w.by == s.attempt
	case OfCurrent:
		said.Lost = w.grant != effective && !m.blindReport
		f = m.facts(w, !w.taken && (s.says == Progressed || s.says == Waits))
	case OfUnknown, OfOlder:
	}
	r := m.rule(standing, w.state, said, f)
	a := answer{decision: r.Decision, refusal: r.Refusal, result: w.result}
	if r.Event == "" {
		return w, a
	}
	w = m.move(w, r.Event, r.To)
	result := r.Event != GrantLost && r.Event != Progressed && r.Event != Waits
	if result && !m.forgetResult && (w.result == "" || m.replaceResult) {
		w.result, w.by = r.To, s.attempt
	}
	return w, a
}

// mutant is one way to be wrong, and the promise that finds it.
type mutant struct {
	name   string
	breaks string
	table  func() // changes a copy of the table
	change func(*model)
}

func mutants() []mutant {
	guard := func(from protocol.State, on Event, g func(Facts) bool) func() {
		return func() {
			r := table[from][on]
			r.guard = g
			table[from][on] = r
		}
	}
	const (
		terminal   = "a terminal task never moves"
		attempts   = "the attempt rises by one, at a claim, and never beyond its budget"
		superseded = "a superseded worker changes nothing"
		takeover   = "nobody is taken over before the lease is over"
		slots      = "a slot is held if and only if the task is in flight, by one task"
		lost       = "a lost grant lets nothing go on"
		other      = "a report of another attempt moves nothing"
		current    = "only a result of the current attempt completes"
		repeated   = "a repeated result is a duplicate"
		silent     = "a task ends though the consumer is silent for ever"
	)
	return []mutant{
		{name: "the token is not checked", breaks: superseded, change: func(m *model) { m.anyToken = true }},
		{name: "the sweep does not look at leases", breaks: takeover, change: func(m *model) { m.anyLease = true }},
		{name: "dead dispatchers are not swept", breaks: silent, change: func(m *model) { m.noSweep = true }},
		{name: "a queued task without attempts is left alone", breaks: silent, change: func(m *model) { m.keepSpent = true }},
		{name: "the slot is not freed", breaks: slots, change: func(m *model) { m.keepSlot = true }},
		{name: "a report leaves the dispatcher its token", breaks: "a token lives in QUEUED only, and what is worked has a lease", change: func(m *model) { m.keepToken = true }},
		{name: "a claim does not look at the grant", breaks: lost, change: func(m *model) { m.blindClaim = true }},
		{name: "a report does not look at the grant", breaks: lost, change: func(m *model) { m.blindReport = true }},
		{name: "the result is not stored with the state", breaks: current, change: func(m *model) { m.forgetResult = true }},
		{name: "a claim spends no attempt", breaks: attempts, change: func(m *model) { m.freeAttempt = true }},
		{name: "an older attempt counts as the current one", breaks: other, change: func(m *model) {
			m.stand = func(state protocol.State, attempt, reported int) Standing {
				return Stand(state, attempt, max(attempt, reported))
			}
		}},
		{name: "an attempt never dispatched counts as the current one", breaks: "an attempt never dispatched is refused", change: func(m *model) {
			m.stand = func(state protocol.State, attempt, reported int) Standing {
				return Stand(state, attempt, min(attempt, reported))
			}
		}},
		{name: "a late report moves an ended task", breaks: terminal, change: func(m *model) {
			m.stand = func(state protocol.State, attempt, reported int) Standing {
				if reported == attempt {
					return OfCurrent
				}
				return Stand(state, attempt, reported)
			}
			m.rule = func(s Standing, from protocol.State, said Said, f Facts) Ruling {
				if s == OfCurrent && from.Terminal() {
					from = running
				}
				return Rule(s, from, said, f)
			}
		}},
		{name: "a repeated result replaces the first", breaks: terminal, change: func(m *model) {
			m.replaceResult = true
			m.rule = func(s Standing, from protocol.State, said Said, f Facts) Ruling {
				if s == OfEnded && said.Own {
					return Rule(OfCurrent, running, said, f)
				}
				return Rule(s, from, said, f)
			}
		}},
		{name: "the record of an attempt's own result is not looked at", breaks: repeated, change: func(m *model) {
			m.rule = func(s Standing, from protocol.State, said Said, f Facts) Ruling {
				said.Own = false
				return Rule(s, from, said, f)
			}
		}},
		{name: "COMPLETED is taken without complete scans", breaks: current, change: func(m *model) {
			m.rule = func(s Standing, from protocol.State, said Said, f Facts) Ruling {
				said.Whole = true
				return Rule(s, from, said, f)
			}
		}},
		{name: "an operator cancels an ended task", breaks: terminal, table: func() {
			table[completed][OperatorCancels] = rule{guard: always, to: cancelled}
		}},
		{name: "a lost grant cancels an ended task", breaks: terminal, table: func() {
			table[failed][GrantLost] = rule{guard: always, to: cancelled}
		}},
		{
			name: "the dispatch budget is ignored", breaks: attempts, change: func(m *model) { m.anyAttempt = true },
			table: guard(queued, DispatcherTakes, func(f Facts) bool { return complete(f) && f.HasSlot }),
		},
		{name: "the last lease queues the task again", breaks: "what spent its budget is not queued again", table: guard(running, LeaseExpired, always)},
		{name: "the last failed dispatch queues the task again", breaks: "what spent its budget is not queued again", table: guard(queued, NotAccepted, always)},
		{name: "the budget to materialise is ignored", breaks: attempts, table: guard(queued, MaterialiseTrouble, always)},
		{
			name: "a pending manifest is dispatched", breaks: "only a complete manifest is dispatched", change: func(m *model) { m.anyManifest = true },
			table: guard(queued, DispatcherTakes, func(f Facts) bool { return attemptsLeft(f) && f.HasSlot }),
		},
		{name: "progress of a queued task needs no slot", breaks: slots, table: guard(queued, Progressed, func(f Facts) bool { return attempted(f) && complete(f) })},
	}
}
