package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// exchange is a report that passed, and what its sender was answered.
type exchange struct {
	attempt int
	state   protocol.State
	answer  string // a decision or the code of a refusal; "lost"
}

// wire is the way from the consumer to the center, watched.
type wire struct {
	*between
	s  *stack
	mu sync.Mutex
	// results are the exchanges about results, in their order.
	results   []exchange
	manifests int // how often a scan was begun
	// onResult decides about the n-th report of a result, counted from 1; nil carries it.
	onResult func(n int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error)
	// onRunning may do something before a progress report is carried.
	onRunning func(n int, r *protocol.Report)
	running   int
}

// watched starts both services with a watched wire from the consumer to the center.
func watched(t *testing.T, rows int, set func(*wire)) *wire {
	t.Helper()
	s := setup(t)
	s.fill(form, rows)
	s.damageAll(form, damage{missing: 3, stale: 3, conflict: 2})
	b, address := s.between(s.centerAddr)
	w := &wire{between: b, s: s}
	if set != nil {
		set(w)
	}
	b.meddleWith(w.carry)
	s.startCenter("", settings{"lease": "5m"})
	s.startConsumer("", settings{"center": settings{"address": address}, "max_retries": 3})
	return w
}

func (w *wire) carry(_ context.Context, method string, request []byte, carry func() ([]byte, error)) ([]byte, error) {
	switch method {
	case "GetManifest":
		w.mu.Lock()
		w.manifests++
		w.mu.Unlock()
	case "ReportResult":
		r, err := reportIn(request)
		if err != nil {
			return nil, err
		}
		if r.State != protocol.Running {
			return w.result(r, carry)
		}
		w.mu.Lock()
		w.running++
		n := w.running
		w.mu.Unlock()
		if w.onRunning != nil {
			w.onRunning(n, r)
		}
	}
	return carry()
}

func (w *wire) result(r *protocol.Report, carry func() ([]byte, error)) (out []byte, err error) {
	w.mu.Lock()
	n := len(w.results) + 1
	w.results = append(w.results, exchange{attempt: r.Attempt, state: r.State})
	w.mu.Unlock()
	if w.onResult == nil {
		out, err = carry()
	} else {
		out, err = w.onResult(n, r, carry)
	}
	said := "lost"
	if err == nil {
		if _, bad := ack(out, func(a *centerv1.ReportResultResponse) {
			said = strings.TrimPrefix(a.GetDecision().String(), "DECISION_")
		}); bad != nil {
			return nil, bad
		}
	} else if !errors.Is(err, errCut) {
		said = string(fault.ReasonOf(err))
	}
	w.mu.Lock()
	w.results[n-1].answer = said
	w.mu.Unlock()
	return out, err
}

func (w *wire) seen() (results []exchange, manifests int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.results), w.manifests
}

// work is the consumer's row as "STATE code attempt/wanted".
func (s *stack) work(id string) (row string) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT coalesce(min(format('%s %s %s/%s', state, code, attempt, wanted_attempt)), '')
		FROM lockstep.work WHERE task_id = $1::uuid`, id).Scan(&row))
	return row
}

// lapse ends the consumer's lease at the center.
func (s *stack) lapse(id string) {
	s.t.Helper()
	s.exec(true, `UPDATE lockstep.task SET lease_until = now() - interval '1 second' WHERE task_id = $1::uuid AND lease_until IS NOT NULL`, id)
}

// newerAttempt makes the center dispatch attempt n+1 and waits until the consumer has it.
func (s *stack) newerAttempt(id string, n int) {
	s.t.Helper()
	s.lapse(id)
	s.await("a newer attempt", func() bool {
		var have bool
		s.must(s.consumer.QueryRow(s.t.Context(), `SELECT wanted_attempt > $2 FROM lockstep.work WHERE task_id = $1::uuid`, id, n).Scan(&have))
		return have
	})
}

// TestAcknowledgements lets both services run, and breaks what lies between them
// when the result is reported.
func TestAcknowledgements(t *testing.T) {
	const done = protocol.Completed
	for name, c := range map[string]struct {
		onResult func(s *stack, n int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error)
		results  []exchange
		center   string
		consumer string
	}{
		"the answer is lost": {
			onResult: func(_ *stack, n int, _ *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				out, err := carry()
				if n <= 2 {
					return nil, errCut
				}
				return out, err
			},
			results: []exchange{{1, done, "lost"}, {1, done, "lost"}, {1, done, "CURRENT_DUPLICATE"}}, center: "COMPLETED", consumer: "COMPLETED  1/1",
		},
		"the report is lost": {
			onResult: func(_ *stack, n int, _ *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				if n == 1 {
					return nil, errCut
				}
				return carry()
			},
			results: []exchange{{1, done, "lost"}, {1, done, "CURRENT_ACCEPTED"}}, center: "COMPLETED", consumer: "COMPLETED  1/1",
		},
		"the answer echoes another attempt": {
			onResult: func(_ *stack, n int, _ *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				out, err := carry()
				if n > 1 || err != nil {
					return out, err
				}
				return ack(out, func(a *centerv1.ReportResultResponse) { a.ReportAttempt++ })
			},
			results: []exchange{{1, done, "CURRENT_ACCEPTED"}, {1, done, "CURRENT_DUPLICATE"}}, center: "COMPLETED", consumer: "COMPLETED  1/1",
		},
		"the answer is about another task": {
			onResult: func(_ *stack, n int, _ *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				out, err := carry()
				if n > 1 || err != nil {
					return out, err
				}
				return ack(out, func(a *centerv1.ReportResultResponse) { a.TaskId = strings.Repeat("0", 32) })
			},
			results: []exchange{{1, done, "CURRENT_ACCEPTED"}, {1, done, "CURRENT_DUPLICATE"}}, center: "COMPLETED", consumer: "COMPLETED  1/1",
		},
		"a newer attempt came meanwhile": {
			onResult: func(s *stack, n int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				if n == 1 {
					s.newerAttempt(r.At.TaskID, 1)
				}
				return carry()
			},
			results: []exchange{{1, done, "STALE_RETRY"}, {2, done, "CURRENT_ACCEPTED"}}, center: "COMPLETED", consumer: "COMPLETED  2/2",
		},
		"the first result stays, though its answer was lost and an operator wants to cancel": {
			onResult: func(s *stack, n int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				out, err := carry()
				if n > 1 {
					return out, err
				}
				if _, err := s.centerAdmin().CancelTask(s.operator(), &centerv1.CancelTaskRequest{TaskId: r.At.TaskID, Reason: "too late"}); fault.ReasonOf(err) != fault.TaskTerminal {
					s.t.Errorf("cancelling a completed task: %v", err)
				}
				return nil, errCut
			},
			results: []exchange{{1, done, "lost"}, {1, done, "CURRENT_DUPLICATE"}}, center: "COMPLETED", consumer: "COMPLETED  1/1",
		},
		"an operator cancelled it meanwhile": {
			onResult: func(s *stack, _ int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				_, err := s.centerAdmin().CancelTask(s.operator(), &centerv1.CancelTaskRequest{TaskId: r.At.TaskID, Reason: "no longer wanted"})
				if err != nil {
					s.t.Error(err)
				}
				return carry()
			},
			results: []exchange{{1, done, "CENTER_TERMINAL"}}, center: "CANCELLED", consumer: "CANCELLED CANCELLED_BY_OPERATOR 1/1",
		},
		"the grant was lost meanwhile": {
			onResult: func(s *stack, _ int, _ *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				s.exec(true, `UPDATE lockstep.consumer_grant SET read_allowed = false, grant_epoch = grant_epoch + 1`)
				return carry()
			},
			results: []exchange{{1, done, "CENTER_TERMINAL"}}, center: "CANCELLED", consumer: "CANCELLED GRANT_REVOKED 1/1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watched(t, 300, func(w *wire) {
				w.onResult = func(n int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
					return c.onResult(w.s, n, r, carry)
				}
			})
			id := w.s.create(form)
			if state := w.s.awaitEnd(id); state != c.center {
				t.Errorf("the task ended %s, want %s", state, c.center)
			}
			if got := w.s.work(id); got != c.consumer {
				t.Errorf("the consumer's row is %q, want %q", got, c.consumer)
			}
			results, manifests := w.seen()
			if !slices.Equal(results, c.results) {
				t.Errorf("reports and answers were %v, want %v", results, c.results)
			}
			if manifests != 1 {
				t.Errorf("it scanned %d times", manifests)
			}
			if n := w.s.differences(form); n != 0 {
				t.Errorf("%d rows differ", n)
			}
			w.s.fsck()
		})
	}
}

// TestParked follows a row that nobody acknowledges, until a newer attempt
// revives it.
func TestParked(t *testing.T) {
	for name, c := range map[string]struct {
		onResult func(s *stack, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error)
		parked   string
		last     string // of the answers that made it park
	}{
		"out of tries": {
			onResult: func(*stack, *protocol.Report, func() ([]byte, error)) ([]byte, error) { return nil, errCut },
			parked:   "PARKED UNAVAILABLE 1/1", last: "lost",
		},
		"the center was set back and does not know the attempt": {
			onResult: func(s *stack, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
				s.exec(true, `UPDATE lockstep.task SET state = 'QUEUED', attempt = 0, slot = NULL, lease_until = NULL, due_at = now() + interval '1 hour'
					WHERE task_id = $1::uuid`, r.At.TaskID)
				return carry()
			},
			parked: "PARKED ATTEMPT_UNKNOWN 1/1", last: "ATTEMPT_UNKNOWN",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watched(t, 300, func(w *wire) {
				w.onResult = func(_ int, r *protocol.Report, carry func() ([]byte, error)) ([]byte, error) {
					if r.Attempt > 1 {
						return carry()
					}
					return c.onResult(w.s, r, carry)
				}
			})
			s := w.s
			id := s.create(form)
			s.await("parking", func() bool { return strings.HasPrefix(s.work(id), "PARKED") })
			if got := s.work(id); got != c.parked {
				t.Errorf("the row is %q, want %q", got, c.parked)
			}
			if results, _ := w.seen(); results[len(results)-1].answer != c.last {
				t.Errorf("it parked after %v", results)
			}
			// The center's lease runs out; where it was set back, the attempt that
			// the consumer had already is dispatched first.
			s.await("the newer attempt's end", func() bool {
				s.exec(true, `UPDATE lockstep.task SET due_at = now() WHERE state = 'QUEUED'`)
				s.lapse(id)
				return strings.HasPrefix(s.work(id), "COMPLETED")
			})
			if state := s.awaitEnd(id); state != "COMPLETED" {
				t.Errorf("the task ended %s", state)
			}
			if n := s.differences(form); n != 0 {
				t.Errorf("%d rows differ", n)
			}
			s.fsck()
		})
	}
}

// TestStaleProgress: a run whose progress report is answered STALE_RETRY goes on
// from where it is, under the attempt that it was sent meanwhile.
func TestStaleProgress(t *testing.T) {
	t.Parallel()
	w := watched(t, 300, func(w *wire) {
		w.onRunning = func(n int, r *protocol.Report) {
			if n == 2 { // before the retirements: everything is scanned
				w.s.newerAttempt(r.At.TaskID, 1)
			}
		}
	})
	id := w.s.create(form)
	if state := w.s.awaitEnd(id); state != "COMPLETED" {
		t.Errorf("the task ended %s", state)
	}
	if got := w.s.work(id); got != "COMPLETED  2/2" {
		t.Errorf("the consumer's row is %q", got)
	}
	results, manifests := w.seen()
	if want := []exchange{{2, protocol.Completed, "CURRENT_ACCEPTED"}}; !slices.Equal(results, want) || manifests != 1 {
		t.Errorf("reports and answers were %v, want %v; it scanned %d times", results, want, manifests)
	}
	w.s.fsck()
}

// TestReports sends reports of the test's own, signed with the consumer's key,
// to a real center whose consumer accepts instructions and executes nothing.
func TestReports(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 10)
	s.startConsumer("", settings{"execution": settings{"enabled": false}})
	s.startCenter("", settings{"lease": "5m"})
	id := s.create(form)
	s.await("a dispatched task", func() bool { return s.taskState(id) == "DISPATCHED" })
	s.newerAttempt(id, 1)
	s.await("the newer attempt at the center", func() bool { return s.taskState(id) == "DISPATCHED" })

	send := s.reporter(id)
	tenDone := func(r *protocol.Report) {
		r.State, r.Phase, r.CenterComplete, r.LocalComplete = protocol.Completed, "", true, true
	}
	failed := func(r *protocol.Report) { r.State, r.Phase, r.Code = protocol.Failed, "", "ORDER_VIOLATION" }
	for _, c := range []struct {
		name    string
		attempt int
		change  func(*protocol.Report)
		want    string
	}{
		{"an older attempt moves nothing", 1, tenDone, "STALE_RETRY attempt 2 stale false task DISPATCHED result UNSPECIFIED"},
		{"an attempt never dispatched is refused", 3, tenDone, "ATTEMPT_UNKNOWN"},
		{"COMPLETED without both scans is refused", 2, func(r *protocol.Report) { tenDone(r); r.LocalComplete = false }, "RESULT_INCONSISTENT"},
		{"COMPLETED with an open difference is refused", 2, func(r *protocol.Report) {
			tenDone(r)
			r.Counts = []protocol.ClassCount{{Class: protocol.Missing, Found: 1, Reported: 1}}
		}, "RESULT_INCONSISTENT"},
		{"a report of another manifest is refused", 2, func(r *protocol.Report) { r.ManifestID = strings.Repeat("0", 32) }, "MANIFEST_MISMATCH"},
		{"a report that states another tenant is refused", 2, func(r *protocol.Report) { r.At.TenantID++ }, "TENANT_MISMATCH"},
		{"a report that states another consumer is refused", 2, func(r *protocol.Report) { r.At.Consumer = "other" }, "IDENTITY_MISMATCH"},
		{"QUEUED is nothing a consumer reports", 2, func(r *protocol.Report) { r.State = protocol.Queued }, "INVALID_ARGUMENT"},
		{"progress renews the lease", 2, func(*protocol.Report) {}, "CURRENT_ACCEPTED attempt 2 stale false task RUNNING result RUNNING"},
		{"and again", 2, func(*protocol.Report) {}, "CURRENT_ACCEPTED attempt 2 stale false task RUNNING result RUNNING"},
		{"the result moves the state", 2, tenDone, "CURRENT_ACCEPTED attempt 2 stale false task COMPLETED result COMPLETED"},
		{"reported twice it is a duplicate", 2, tenDone, "CURRENT_DUPLICATE attempt 2 stale false task COMPLETED result COMPLETED"},
		{"and so it is if it says something else", 2, failed, "CURRENT_DUPLICATE attempt 2 stale false task COMPLETED result COMPLETED"},
		{"late progress is one too", 2, func(*protocol.Report) {}, "CURRENT_DUPLICATE attempt 2 stale false task COMPLETED result COMPLETED"},
		{"an older attempt's late report is told the end", 1, failed, "CENTER_TERMINAL attempt 2 stale true task COMPLETED result UNSPECIFIED"},
		{"and so is one never dispatched", 3, failed, "CENTER_TERMINAL attempt 2 stale true task COMPLETED result UNSPECIFIED"},
	} {
		if got := send(c.attempt, c.change); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	var results int
	s.must(s.center.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.task_result WHERE state = 'COMPLETED' AND attempt = 2`).Scan(&results))
	if results != 1 {
		t.Errorf("%d results are stored", results)
	}
	// The consumer, which executes nothing, mirrors the end that it is told.
	if s.awaitEnd(id); !strings.HasPrefix(s.work(id), "COMPLETED") {
		t.Errorf("the consumer's row is %q", s.work(id))
	}
	s.fsck()
}

// reporter gives a way to send the center reports about a task as its consumer.
func (s *stack) reporter(id string) func(attempt int, change func(*protocol.Report)) string {
	s.t.Helper()
	key, err := identity.LoadKeyFile(s.file(consumerApp + ".key.json"))
	s.must(err)
	signer, err := key.Signer()
	s.must(err)
	caller, err := identity.NewCaller(key, centerApp)
	s.must(err)
	conn, err := grpc.NewClient(s.centerAddr, append(caller.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() })
	base := protocol.Report{
		At: protocol.Coordinates{
			Source: centerApp, Consumer: consumerApp, TaskID: id, TenantID: tenant, CollectionID: form, GrantEpoch: 1, CenterEpoch: 1,
		},
		State: protocol.Running, Phase: protocol.Scanning, Verified: protocol.Hashes, CenterScanned: 10, LocalScanned: 10,
	}
	var root []byte
	s.must(s.center.QueryRow(s.t.Context(), `SELECT replace(manifest_id::text, '-', ''), manifest_root FROM lockstep.task WHERE task_id = $1::uuid`, id).
		Scan(&base.ManifestID, &root))
	copy(base.ManifestRoot[:], root)
	return func(attempt int, change func(*protocol.Report)) string {
		r := base
		r.Attempt = attempt
		change(&r)
		env, err := document.SealReport(signer, &r)
		s.must(err)
		out, err := centerv1.NewReconcileServiceClient(conn).ReportResult(s.t.Context(), &centerv1.ReportResultRequest{Report: document.EnvelopeToProto(env)})
		if err != nil {
			return string(fault.ReasonOf(err))
		}
		if out.GetTaskId() != id || int(out.GetReportAttempt()) != attempt {
			s.t.Errorf("the answer echoes task %s, attempt %d", out.GetTaskId(), out.GetReportAttempt())
		}
		return said(out)
	}
}

func said(a *centerv1.ReportResultResponse) string {
	state := func(st evidencev1.TaskState) string { return strings.TrimPrefix(st.String(), "TASK_STATE_") }
	return fmt.Sprintf("%s attempt %d stale %t task %s result %s", strings.TrimPrefix(a.GetDecision().String(), "DECISION_"),
		a.GetAttempt(), a.GetStale(), state(a.GetTaskState()), state(a.GetResultState()))
}
