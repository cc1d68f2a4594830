package e2e

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/internal/browsertest"
)

// hall is a consumer with data of every kind, and a browser before its console.
type hall struct {
	*stack
	tab           *browsertest.Tab
	viewer, other string
	stuck, task   string
}

// setupHall damages a form so that one row can't be repaired, and runs a task of it.
func setupHall(t *testing.T) *hall {
	t.Helper()
	h := &hall{stack: setup(t)}
	viewer, viewerHash := identity.GenerateOperatorToken()
	other, otherHash := identity.GenerateOperatorToken()
	h.viewer, h.other = viewer, other
	h.fill(form, 300)
	h.damageAll(form, damage{missing: 12, stale: 10, conflict: 6, tombstone: 4, extra: 5})
	stuck := key(form, 36) // the first of the stale ones
	h.stuck = hex.EncodeToString(stuck[:])
	h.exec(false, `ALTER TABLE hall.answer_projection ADD CONSTRAINT host_refuses CHECK (answer_id <> '`+h.stuck+`' OR revision < 3) NOT VALID`)
	h.exec(false, `INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, planned_amount, difference_amount)
		SELECT 11 + n % 3, n, n, 202607, 501, 100, -100 FROM generate_series(1, 120) n`)
	h.exec(false, `INSERT INTO scores.candidate_fact (candidate_id, id, period, dimension, value) VALUES (1, 1, 202607, 8, 70)`)
	consumer := h.startConsumer("", settings{
		"refresh": settings{"projections": []string{"bills", "scores"}, "scan": "100ms"},
		"operators": []settings{
			{"id": "tester", "role": "admin", "token_sha256": h.tokenHash},
			{"id": "vera", "role": "viewer", "token_sha256": viewerHash},
			{"id": "otto", "role": "operator", "token_sha256": otherHash, "tenants": []int64{tenant + 1}},
		},
	})
	h.startCenter("", nil)
	h.task = h.create(form)
	if state := h.awaitEnd(h.task); state != "PARTIAL" {
		t.Fatalf("the task ended %s, want PARTIAL", state)
	}
	h.tab = browsertest.Open(t, "http://"+consumer.at.HTTP)
	return h
}

// shows wants a number of elements on the page.
func (h *hall) shows(what, selector string, want int) {
	h.t.Helper()
	if got := browsertest.Evaluate[int](h.tab, fmt.Sprintf("document.querySelectorAll(%q).length", selector)); got != want {
		h.t.Errorf("%s: %d of %s, want %d", what, got, selector, want)
	}
}

// does presses a link, gives the reason that its form asks for, and sends it.
func (h *hall) does(link, button, reason, done string) {
	h.t.Helper()
	h.tab.Press(link)
	h.tab.Await(button)
	if reason != "" {
		h.tab.Type("textarea[name=reason]", reason)
	}
	h.tab.Press(button)
	h.tab.Await(done)
}

func (h *hall) signsInAs(token string) {
	h.t.Helper()
	h.tab.Press("Sign out")
	h.tab.Await("Operator's token")
	h.tab.SignIn(token)
}

// TestConsumerConsole clicks through what operators do, in Chromium.
func TestConsumerConsole(t *testing.T) {
	t.Parallel()
	h := setupHall(t)
	h.tab.SignIn(h.token)
	h.seesWhatATaskFound()
	h.keepsTheEvidence()
	h.retriesAQuarantinedRecord()
	h.pausesAndResumesWhileItRuns()
	h.restoresARetiredRow()
	h.refreshes()
	h.mendsAFailedRefresh()
	h.readsBillsAndStations()
	h.readsTheAuditLog()
	h.everyReadWritesNothing()
	h.staysWithinItsRoleAndTenants()
}

func (h *hall) seesWhatATaskFound() {
	h.tab.Await("never") // proven equal
	h.tab.Await("PARTIAL")
	h.tab.Shoot("consumer-overview")
	h.tab.Press("Work")
	h.tab.Await("Accepted tasks")
	h.tab.Shoot("consumer-work")
	h.tab.Click(`a[href="/console/work/` + h.task + `"]`)
	h.tab.Await("Ended PARTIAL")
	// MISSING, HASH_CONFLICT, TOMBSTONE, EXTRA_ROW in one part each, STALE in two.
	h.shows("the chart", "svg.share rect", 6)
	h.shows("the ledger", `#main table:not(.counts) tbody tr`, 37)
	h.tab.Shoot("consumer-task")
	h.tab.Choose("select[name=outcome]", "QUARANTINED")
	h.tab.Press("Filter")
	h.tab.Await("Clear")
	h.shows("the filtered ledger", `#main table:not(.counts) tbody tr`, 1)
	h.tab.Choose("select[name=class]", "MISSING")
	h.tab.Press("Filter")
	h.tab.Await("No difference fits the filter.")
}

func (h *hall) keepsTheEvidence() {
	file := h.download(h.tab, "/console/work/"+h.task+"/evidence", "evidence-"+h.task+".jsonl")
	// The first and the last line, the instruction, the report, and a word a difference.
	if n := strings.Count(h.read(file), "\n"); n != 4+37 {
		h.t.Errorf("the file has %d lines", n)
	}
	code, said := h.lockstep("", "evidence", "verify", file, "--trust", h.file("trust.json"), "--task", h.task, "--source", centerApp, "--for", consumerApp)
	for _, want := range []string{"attempt 1 ended PARTIAL", "counts 31 repairs and 5 retirements", "the bundle is the consumer's and has no header", "everything holds"} {
		if code != 0 || !strings.Contains(said, want) {
			h.t.Errorf("exit code %d, %q is not in %s", code, want, said)
		}
	}
}

func (h *hall) retriesAQuarantinedRecord() {
	h.tab.Press("Quarantine")
	h.tab.Await("Choose one")
	h.tab.Shoot("consumer-quarantine-choice")
	h.tab.Press("quarantined")
	h.tab.Await(h.stuck)
	h.tab.Shoot("consumer-quarantine")
	h.tab.Press("Retry")
	h.tab.Await("Take it off the list")
	h.tab.Shoot("consumer-retry")
	h.tab.Press("Don't")
	h.tab.Await(h.stuck)
	h.exec(false, `ALTER TABLE hall.answer_projection DROP CONSTRAINT host_refuses`)
	h.does("Retry", "Take it off the list", "the rule is gone", "The record is off the list until a task finds it again.")
	h.tab.Await("Nothing is quarantined here.")
}

// pausesAndResumesWhileItRuns holds the host's table, so that a task is under way
// for as long as it is looked at.
func (h *hall) pausesAndResumesWhileItRuns() {
	h.tab.Press("Overview")
	h.tab.Await("No task is being worked on.")
	held, err := h.consumer.Begin(h.t.Context())
	h.must(err)
	defer held.Rollback(h.t.Context()) //nolint:errcheck // it is committed by then
	_, err = held.Exec(h.t.Context(), `LOCK TABLE hall.answer_projection IN ACCESS EXCLUSIVE MODE`)
	h.must(err)
	id := h.create(form)
	h.tab.Await(id[:8]) // by itself: the page is live
	h.tab.Shoot("consumer-overview-running")
	h.tab.Click(`a[href="/console/work/` + id + `"]`)
	h.tab.Await("Scanning")
	h.does("Pause", "Pause it", "for the night", "The task is paused.")
	h.tab.Await("PAUSED")
	h.tab.Shoot("consumer-task-paused")
	h.does("Resume", "Resume it", "it is morning", "The task goes on.")
	h.tab.AwaitGone("PAUSED")
	h.must(held.Commit(h.t.Context()))
	h.tab.Await("Ended COMPLETED")
	h.tab.AwaitGone("Pause")
	h.tab.Press("Overview")
	h.tab.Await("COMPLETED")
	h.tab.AwaitGone("never")

	// What has ended can't be paused; a page from before says so.
	h.tab.Go("/console/work/" + id + "/pause")
	h.tab.Await("Pause it")
	h.tab.Type("textarea[name=reason]", "too late")
	h.tab.Press("Pause it")
	h.tab.Await("TASK_TERMINAL")
	if kept := browsertest.Evaluate[string](h.tab, "document.querySelector('textarea').value"); kept != "too late" {
		h.t.Errorf("the form forgot its reason: %q", kept)
	}
}

func (h *hall) restoresARetiredRow() {
	h.tab.Press("Retired")
	h.tab.Await("Choose one")
	h.tab.Press("retired")
	h.tab.Await("Retired rows, in key order")
	h.shows("retired rows", "tbody tr", 5)
	h.tab.Shoot("consumer-retired")
	h.tab.Click("tbody tr:first-child th a")
	h.tab.Await("This row is retired.")
	h.tab.Shoot("consumer-record")
	h.does("Restore it", "Restore it", "the wrong form was emptied", "The row is back, and held.")
	h.shows("retired rows", "tbody tr", 4)

	h.tab.Press("Record")
	h.tab.Await("Name a tenant, a collection and a key.")
	h.tab.Type("input[name=tenant]", "7")
	h.tab.Type("input[name=collection]", form)
	k := key(form, 1)
	h.tab.Type("input[name=key]", protocol.FormatID(k))
	h.tab.Press("Explain")
	h.tab.Await(`"name":"é<&>1"`) // content as it is, and no markup
	h.tab.Type("input[name=key]", strings.Repeat("0", 32))
	h.tab.Press("Explain")
	h.tab.Await("This side has no row of this key.")
}

func (h *hall) refreshes() {
	h.tab.Press("Refresh")
	h.tab.Await("Nothing was asked to be refreshed yet.")
	h.tab.Press("Refresh now")
	h.tab.Await("The request is submitted and worked on")
	h.tab.Choose("select[name=projection]", "scores")
	h.tab.Type("textarea[name=payload]", `{"scopes": [`)
	h.tab.Press("Refresh now")
	h.tab.Await("INVALID_ARGUMENT")
	h.tab.Shoot("consumer-refresh-now-refused")
	h.tab.Type("textarea[name=payload]", `{"mode": "REVIEW_CREATE", "scopes": [{"candidate_id": 1, "period": 202607}]}`)
	h.tab.Press("Refresh now")
	h.tab.Await("The refresh is done.")
	h.tab.Await("SUCCESS")
	h.shows("scopes", "tbody tr", 1)
	h.tab.Shoot("consumer-refresh-task")

	h.tab.Press("Refresh")
	h.tab.Press("Submit a request")
	h.tab.Await("A worker takes it.")
	h.tab.Choose("select[name=projection]", "scores")
	h.tab.Type("textarea[name=payload]", `{"mode": "REVIEW_CREATE", "scopes": [{"candidate_id": 1, "period": 202607}]}`)
	h.tab.Press("Submit it")
	h.tab.Await("The request is generation 2 of this task.")
	h.tab.Await("2 of 2")

	h.tab.Press("Scores")
	h.tab.Await("Name a candidate and a period.")
	h.tab.Type("input[name=candidate]", "1")
	h.tab.Type("input[name=period]", "202607")
	h.tab.Press("Show")
	h.tab.Await("70.00")
	h.tab.Shoot("consumer-score")
}

// mendsAFailedRefresh has a task whose stored payload nobody can read.
func (h *hall) mendsAFailedRefresh() {
	h.exec(false, `INSERT INTO lockstep.refresh_task (task_id, projection, task_code, business_key, custom_key, mode, payload, range_hash, max_retry)
		VALUES (gen_random_uuid(), 'scores', repeat('a', 64), 'broken', true, 'EXISTING_ONLY', '{"scopes":7}', decode(repeat('00', 32), 'hex'), 3)`)
	h.tab.Press("Refresh")
	h.tab.Await("FAILED") // by itself, once a worker tried it
	h.tab.Shoot("consumer-refresh")
	h.tab.Choose("select[name=state]", "FAILED")
	h.tab.Press("Filter")
	h.tab.Await("Clear")
	h.tab.Click("tbody th a")
	h.tab.Await("Business key (the caller's own)")
	h.tab.Await("the request can't be read; scopes is a number, not a list")
	h.does("Retry", "Wake it", "", "The task was woken.")
	h.does("Force", "Force it", "the facts are there now", "The task is due now.")
	h.does("Cancel", "Cancel it", "a wrong request", "The task is cancelled.")
	h.tab.Await("CANCELLED_BY_OPERATOR an operator cancelled the task; what is asked of it is refused until it is reopened")
	h.tab.Shoot("consumer-refresh-cancelled")
	h.does("Reopen", "Reopen it", "right after all", "The task is open again.")
	h.tab.AwaitGone("CANCELLED_BY_OPERATOR")
}

func (h *hall) readsBillsAndStations() {
	h.tab.Press("Bills")
	h.tab.Await("Bill snapshots, newest month first")
	h.shows("a page of bills", "tbody tr", 50)
	h.tab.Shoot("consumer-bills")
	h.tab.Press("Next page")
	h.tab.Await("First page")
	h.tab.Press("Sums by station")
	h.tab.Await("one row a station")
	h.shows("stations", "tbody tr", 3)
	h.tab.Shoot("consumer-stations")
	h.tab.Press("12")
	h.tab.Await("Bill snapshots")
	h.shows("a station's bills", "tbody tr", 40)
	csv := browsertest.Evaluate[string](h.tab, `fetch([...document.querySelectorAll("a.button")].find((a) => a.textContent.startsWith("CSV")).href).then((r) => r.text())`)
	if lines := strings.Split(strings.TrimSpace(csv), "\n"); len(lines) != 41 || !strings.HasPrefix(lines[0], "bill_month,station_id,") || !strings.HasPrefix(lines[1], "202607,12,") {
		h.t.Errorf("the CSV has %d lines, the first ones %q", len(lines), lines[:min(2, len(lines))])
	}
	h.tab.Type("input[name=from]", "soon")
	h.tab.Press("Filter")
	h.tab.Await("INVALID_ARGUMENT")
	h.tab.Shoot("consumer-problem")
}

func (h *hall) readsTheAuditLog() {
	h.tab.Press("Audit")
	for _, reason := range []string{"the rule is gone", "for the night", "it is morning", "the wrong form was emptied", "a wrong request"} {
		h.tab.Await(reason)
	}
	h.tab.Shoot("consumer-audit")
	h.tab.Type("input[name=action]", "pause")
	h.tab.Press("Filter")
	h.tab.Await("Clear")
	h.shows("pauses", "tbody tr", 1)
}

// everyReadWritesNothing opens every page and form, live parts included.
func (h *hall) everyReadWritesNothing() {
	var refresh string
	h.must(h.consumer.QueryRow(h.t.Context(), `SELECT replace(task_id::text, '-', '') FROM lockstep.refresh_task WHERE state = 'SUCCESS'`).Scan(&refresh))
	h.exec(false, `UPDATE lockstep.refresh_task SET due_at = now() + interval '1 hour' WHERE state = 'FAILED'`)
	before := h.rows()
	for _, path := range []string{
		"", "work", "work/" + h.task, "work/" + h.task + "/resume", "quarantine", "quarantine?tenant=7",
		"quarantine/retry?tenant=7&collection=" + form + "&key=" + h.stuck, "retired?tenant=7&collection=" + form,
		"retired/restore?tenant=7&collection=" + form + "&key=" + h.stuck, "record?tenant=7&collection=" + form + "&key=" + h.stuck,
		"refresh", "refresh/" + refresh, "refresh/" + refresh + "/force", "refresh/submit", "refresh/now", "bills", "stations", "scores?candidate=1&period=202607", "audit",
	} {
		h.tab.Go("/console/" + path)
		if status := h.tab.Status(); status != 200 {
			h.t.Errorf("%s: %d", path, status)
		}
	}
	if after := h.rows(); after != before {
		h.t.Errorf("a read wrote something:\n%s\nbefore\n%s", after, before)
	}
}

// rows digests every row of every table, with who wrote it last.
func (h *hall) rows() (digests string) {
	h.t.Helper()
	names, err := h.consumer.Query(h.t.Context(), `SELECT schemaname || '.' || tablename FROM pg_tables
		WHERE schemaname IN ('lockstep', 'hall', 'bills', 'scores') AND tablename NOT LIKE 'audit\_seal%' ORDER BY 1`) // a loop seals the audit log
	h.must(err)
	tables, err := pgx.CollectRows(names, pgx.RowTo[string])
	h.must(err)
	for _, table := range tables {
		var digest string
		h.must(h.consumer.QueryRow(h.t.Context(), `SELECT coalesce(md5(string_agg(xmin::text || t::text, '' ORDER BY ctid)), '') FROM `+table+` t`).Scan(&digest))
		digests += table + " " + digest + "\n"
	}
	return digests
}

// offersAViewerNothing: no page has a button or a link to what is refused.
func (h *hall) offersAViewerNothing() {
	var refresh []string
	h.must(h.consumer.QueryRow(h.t.Context(), `SELECT array_agg(replace(task_id::text, '-', '')) FROM lockstep.refresh_task`).Scan(&refresh))
	paths := []string{"", "work", "work/" + h.task, "quarantine", "quarantine?tenant=7", "retired?tenant=7&collection=" + form, "refresh", "bills", "stations", "audit"}
	for _, task := range refresh {
		paths = append(paths, "refresh/"+task)
	}
	for _, path := range paths {
		h.tab.Go("/console/" + path)
		if status := h.tab.Status(); status != 200 {
			h.t.Errorf("%s: %d", path, status)
		}
		h.shows(path+": what a viewer may not", `main form[method=post], a[href$="/pause"], a[href$="/resume"], a[href$="/evidence"], a[href*="/retry"], a[href*="/restore"], a[href$="/record"], a[href*="/record?"], a[href$="/submit"], a[href$="/now"], a[href$="/force"], a[href$="/cancel"], a[href$="/reopen"]`, 0)
	}
	h.tab.Go("/console/work/" + h.task)
	h.tab.Await("Ledger")
	h.tab.Shoot("consumer-task-viewer")
}

// staysWithinItsRoleAndTenants: the console may do what its operator may.
func (h *hall) staysWithinItsRoleAndTenants() {
	h.signsInAs(h.viewer)
	h.tab.Await("vera\nviewer")
	h.tab.Await("COMPLETED")
	h.offersAViewerNothing()
	h.tab.Go("/console/record?tenant=7&collection=" + form + "&key=" + h.stuck)
	h.tab.Await("PERMISSION_DENIED")
	if status := h.tab.Status(); status != 403 {
		h.t.Errorf("a viewer's look at content: %d", status)
	}
	h.tab.Go("/console/work/" + h.task + "/evidence")
	h.tab.Await("PERMISSION_DENIED")
	h.tab.Go("/console/quarantine/retry?tenant=7&collection=" + form + "&key=" + h.stuck)
	h.tab.Await("the role operator is needed")
	h.shows("a form", "main form", 0)
	h.tab.Shoot("consumer-denied")

	h.signsInAs(h.other)
	h.tab.Await("Nothing had work yet.")
	h.shows("what is of every tenant", `nav a[href="/console/refresh"], nav a[href="/console/audit"]`, 0)
	h.tab.Shoot("consumer-empty")
	h.tab.Go("/console/work/" + h.task)
	h.tab.Await("TASK_NOT_FOUND")
	h.tab.Go("/console/quarantine?tenant=7")
	h.tab.Await("NOT_FOUND")
	for _, page := range []string{"refresh", "bills", "stations", "audit"} {
		h.tab.Go("/console/" + page)
		h.tab.Await("PERMISSION_DENIED")
	}
}
