package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/internal/browsertest"
)

// desk is a center with data that differs and a delivery that was given up, and
// a browser before its console.
type desk struct {
	*stack
	node          *node
	tab           *browsertest.Tab
	viewer, other string
	task          string
}

func setupDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{stack: setup(t)}
	viewer, viewerHash := identity.GenerateOperatorToken()
	other, otherHash := identity.GenerateOperatorToken()
	d.viewer, d.other = viewer, other
	d.fill(form, 300)
	d.damageAll(form, damage{missing: 12, stale: 10, conflict: 6, tombstone: 4, extra: 5})
	// A row that only the consumer has and that is too new to be retired is left open.
	d.exec(false, `INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash, created_at)
		VALUES ($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff', $2, 1, sha256('x'), now() + interval '1 hour')`, tenant, form)
	d.exec(true, `TRUNCATE answers.answer_outbox`) // of the filling
	change := withOutbox()
	// Who is not there is refused at once; who is there has time, on a busy machine too.
	change["delivery"] = settings{"enabled": true, "timeout": "5s", "max_attempts": 2, "backoff": settings{"base": "50ms", "cap": "50ms"}}
	change["claim_lease"], change["lease"] = "15s", "1m"
	change["operators"] = []settings{
		{"id": "tester", "role": "admin", "token_sha256": d.tokenHash},
		{"id": "vera", "role": "viewer", "token_sha256": viewerHash},
		{"id": "otto", "role": "operator", "token_sha256": otherHash, "tenants": []int64{tenant + 1}},
	}
	d.node = d.startCenter("", change)
	d.update(299, 300)
	d.await("the delivery is given up", func() bool { return strings.HasPrefix(d.queued(), "FAILED UNAVAILABLE") })
	d.startConsumer("", receiving)
	d.tab = browsertest.Open(t, "http://"+d.node.at.HTTP)
	return d
}

func (d *desk) shows(what, selector string, want int) {
	d.t.Helper()
	if got := browsertest.Evaluate[int](d.tab, fmt.Sprintf("document.querySelectorAll(%q).length", selector)); got != want {
		d.t.Errorf("%s: %d of %s, want %d", what, got, selector, want)
	}
}

// does presses a link, gives the reason that its form asks for, and sends it.
func (d *desk) does(link, reason, done string) {
	d.t.Helper()
	d.tab.Press(link)
	d.tab.Await("Don't")
	if reason != "" {
		d.tab.Type("textarea[name=reason]", reason)
	}
	d.tab.Click("main form button")
	d.tab.Await(done)
}

// TestCenterConsole clicks through what operators do, in Chromium.
func TestCenterConsole(t *testing.T) {
	t.Parallel()
	d := setupDesk(t)
	d.signsIn()
	d.cancelsWhatRuns()
	d.watchesATaskToItsEnd()
	d.looksAtItsEvidence()
	d.sendsAgainWhatWasGivenUp()
	d.decidesWhoMayHaveWhat()
	d.readsARecordAndTheAuditLog()
	d.worksWithoutScriptAndByKeyboard()
	d.runsNoForeignScriptOrStyle()
	d.logsNoLineForALivePage()
	d.everyReadWritesNothing()
	d.staysWithinItsRoleAndTenants()
	d.stopsAtOnce()
}

func (d *desk) signsIn() {
	d.tab.Go("/console/tasks?state=FAILED")
	d.tab.Await("Sign in with the token")
	d.tab.Shoot("center-sign-in")
	d.tab.Type("#token", "a wrong-token")
	d.tab.Press("Sign in")
	d.tab.Await("This is no operator's token.")
	d.tab.Type("#token", strings.Repeat("A", 52))
	d.tab.Press("Sign in")
	d.tab.Await("The token is not known here.")
	d.tab.Shoot("center-sign-in-refused")
	d.tab.Type("#token", d.token)
	d.tab.Press("Sign in")
	d.tab.Await("No task fits the filter.") // back where it began
	if at := d.tab.Path(); at != "/console/tasks?state=FAILED" {
		d.t.Errorf("after signing in the page is %s", at)
	}
	// The cookie is for the server alone.
	if seen := browsertest.Evaluate[string](d.tab, "document.cookie"); seen != "" {
		d.t.Errorf("a script reads the cookies %q", seen)
	}
}

// cancelsWhatRuns holds the host's table, so that the task is under way for as
// long as it is looked at.
func (d *desk) cancelsWhatRuns() {
	d.tab.Press("Overview")
	d.tab.Await("No task is under way.")
	d.tab.Await("never") // proven equal
	d.tab.Shoot("center-overview-empty")
	held, err := d.consumer.Begin(d.t.Context())
	d.must(err)
	defer held.Rollback(d.t.Context()) //nolint:errcheck // it only ends the lock
	_, err = held.Exec(d.t.Context(), `LOCK TABLE hall.answer_projection IN ACCESS EXCLUSIVE MODE`)
	d.must(err)
	id := d.create(form)
	d.tab.Await(id[:8]) // by itself: the page is live
	d.tab.Await("RUNNING")
	d.tab.Shoot("center-overview-running")
	d.tab.Click(`a[href="/console/tasks/` + id + `"]`)
	d.tab.AwaitLive()
	d.tab.Shoot("center-task-running")
	d.tab.Press("Cancel")
	d.tab.Await("What was repaired so far stays.")
	d.tab.Shoot("center-cancel")
	d.tab.Press("Don't")
	d.tab.Await("RUNNING")
	d.does("Cancel", "the wrong form", "The task is cancelled.")
	d.tab.Await("CANCELLED_BY_OPERATOR")
	d.tab.AwaitStill()
	d.shows("what is left to do", `a[href$="/cancel"]`, 0)

	// What has ended can't be cancelled twice over; but saying it again changes nothing.
	d.tab.Go("/console/tasks/" + id + "/cancel")
	d.tab.Press("Cancel the task") // the browser itself asks for the reason
	if at := d.tab.Path(); at != "/console/tasks/"+id+"/cancel" {
		d.t.Errorf("without a reason the page is %s", at)
	}
}

func (d *desk) watchesATaskToItsEnd() {
	d.tab.Press("Overview")
	d.tab.Press("Reconcile " + form)
	d.tab.Await("Make the task")
	for field, want := range map[string]string{"consumer": consumerApp, "tenant": "7", "collection": form, "scope": "COLLECTION", "mode": "REPAIR"} {
		if got := browsertest.Evaluate[string](d.tab, fmt.Sprintf("document.querySelector('[name=%s]').value", field)); got != want {
			d.t.Errorf("%s begins with %q, want %q", field, got, want)
		}
	}
	d.tab.Shoot("center-new-task")
	d.tab.Choose("select[name=scope]", "RECORD")
	d.tab.Press("Make the task")
	d.tab.Await("INVALID_ARGUMENT")
	d.shows("what is wrong beside the key", "#field-key[aria-invalid]", 1)
	d.tab.Shoot("center-new-task-refused")
	d.tab.Choose("select[name=scope]", "COLLECTION")
	d.tab.Press("Make the task")
	d.tab.Await("The task is made.")
	_, d.task, _ = strings.Cut(d.tab.Path(), "/console/tasks/")
	d.tab.Await("PARTIAL") // by itself
	d.tab.Await("What the consumer signed at the end of each attempt")
	d.shows("what is left to do", `a[href$="/cancel"]`, 0)
	// MISSING, STALE, HASH_CONFLICT, TOMBSTONE in one part each, EXTRA_ROW in two.
	d.shows("the chart", "svg.share rect", 6)
	d.tab.Await("NOT_RETIRABLE")
	d.tab.Await("MATERIALISED")
	d.tab.Shoot("center-task")
	d.tab.Press("Differences")
	d.tab.Await("ffffffffffffffffffffffffffffffff")
	d.tab.Shoot("center-outcomes")
	d.tab.Type("input[name=code]", "QUARANTINED")
	d.tab.Press("Filter")
	d.tab.Await("None fits the filter.")
	d.tab.Press("Tasks")
	d.tab.Await("CANCELLED")
	d.shows("the tasks", "tbody tr", 2)
	d.tab.Shoot("center-tasks")
	d.tab.Choose("select[name=state]", "PARTIAL")
	d.tab.Press("Filter")
	d.tab.Await("Clear")
	d.shows("the filtered tasks", "tbody tr", 1)
}

func (d *desk) looksAtItsEvidence() {
	d.tab.Go("/console/tasks/" + d.task)
	d.tab.Press("Evidence")
	d.tab.Await("manifest header")
	d.shows("signed words", "tbody tr", 2)
	d.tab.Type("input[name=key]", strings.Repeat("f", 32))
	d.tab.Press("Look")
	d.tab.Await("The key is not among the manifest's rows")
	k := key(form, 299)
	d.tab.Type("input[name=key]", protocol.FormatID(k))
	d.tab.Press("Look")
	d.tab.Await("The key is among the manifest's rows")
	d.tab.Shoot("center-evidence")
	href := browsertest.Evaluate[string](d.tab, `[...document.querySelectorAll("a.button")].find((a) => a.textContent === "Download").getAttribute("href")`)
	file := d.download(d.tab, href, "evidence-"+d.task+"-"+protocol.FormatID(k)+".jsonl")
	code, said := d.lockstep("", "evidence", "verify", file, "--trust", d.file("trust.json"), "--task", d.task, "--source", centerApp, "--for", consumerApp)
	if code != 0 || !strings.Contains(said, "record "+protocol.FormatID(k)+" was among those rows") || !strings.Contains(said, "everything holds") {
		d.t.Errorf("exit code %d: %s", code, said)
	}
	exported := d.file("exported.jsonl")
	if code, said := d.lockstep(d.token, "evidence", "export", d.task, "--center", "http://"+d.node.at.HTTP, "--key", protocol.FormatID(k), "--out", exported); code != 0 {
		d.t.Errorf("exit code %d: %s", code, said)
	}
	if kept, wanted := d.read(file), d.read(exported); kept != wanted {
		d.t.Errorf("the console gives\n%s\nthe command line\n%s", kept, wanted)
	}
}

func (d *desk) sendsAgainWhatWasGivenUp() {
	d.tab.Press("Deliveries")
	d.tab.Await("Deliveries that were given up")
	d.tab.Await("UNAVAILABLE")
	d.tab.Shoot("center-deliveries")
	k := key(form, 299)
	d.tab.Press("Send again " + protocol.FormatID(k))
	d.tab.Await("Don't")
	var facts []string
	for _, fact := range strings.Split(d.tab.Text("main dl.facts"), "\n") {
		if fact = strings.TrimSpace(fact); fact != "" {
			facts = append(facts, fact)
		}
	}
	if shown := strings.Join(facts, " "); !strings.HasPrefix(shown, "Record "+protocol.FormatID(k)+" Consumer hall Tenant 7 Collection "+form+" State FAILED Code UNAVAILABLE Attempts 2 Queued ") ||
		!strings.Contains(shown, " ago, at 20") {
		d.t.Errorf("the form shows %s", shown)
	}
	d.tab.Shoot("center-replay")
	d.tab.Press("Don't")
	d.tab.Await("Deliveries that were given up")
	d.does("Send again "+protocol.FormatID(k), "the consumer is back", "goes to hall again.")
	d.tab.Await("No delivery was given up.")
	d.tab.Choose("select[name=state]", "DONE")
	d.tab.Press("Filter")
	d.tab.Await("Newest first")
	d.tab.Await("DONE") // by itself, once the consumer has it
}

func (d *desk) decidesWhoMayHaveWhat() {
	d.tab.Press("Consumers")
	d.tab.Await("where they are called")
	d.tab.Shoot("center-consumers")
	d.tab.Press("tenants")
	d.tab.Await("Tenants that the consumer serves")
	d.tab.Press("Add a tenant")
	d.tab.Await("It is granted nothing by this alone.")
	d.tab.Type("input[name=tenant]", "x")
	d.tab.Click("main form button")
	d.tab.Await("Not accepted: is a whole number.")
	d.tab.Type("input[name=tenant]", "9")
	d.tab.Click("main form button")
	d.tab.Await("Tenant 9 is added.")
	d.tab.Shoot("center-tenants")
	d.tab.Press("Remove tenant 9")
	d.tab.Await("The epochs of all its grants rise")
	d.tab.Shoot("center-remove-tenant")
	d.tab.Click("main form button")
	d.tab.Await("Tenant 9 is removed")

	d.tab.Press("Grants")
	d.tab.Await("effective")
	d.tab.Shoot("center-grants")
	d.tab.Press("Revoke " + form)
	d.tab.Await("Taking something away raises the grant's epoch")
	d.tab.Shoot("center-revoke")
	d.tab.Click("main form button")
	d.tab.Await("is set, epoch 2; open tasks cancelled: 0.")
	d.tab.Await("not effective")
	d.tab.Press("Change " + form)
	d.tab.Await("In force")
	d.tab.Click("#field-enabled")
	d.tab.Click("main form button")
	d.tab.Await("is set, epoch 2")
	d.tab.AwaitGone("not effective")
}

func (d *desk) readsARecordAndTheAuditLog() {
	d.tab.Press("Records")
	d.tab.Await("Name a record's key")
	d.tab.Shoot("center-records")
	k := key(form, 1)
	d.tab.Type("input[name=key]", protocol.FormatID(k))
	d.tab.Type("input[name=tenant]", "7")
	d.tab.Type("input[name=collection]", form)
	d.tab.Press("Show")
	d.tab.Await(`"name":"é<&>1"`) // content as it is, and no markup
	d.tab.Shoot("center-record")
	d.tab.Press("Send to a consumer")
	d.tab.Await("by ordinary delivery")
	d.tab.Type("textarea[name=reason]", "to be sure")
	d.tab.Click("main form button")
	d.tab.Await("goes to hall again.")

	d.tab.Press("Audit")
	for _, text := range []string{"the wrong form", "the consumer is back", "to be sure", "tenant.add", "grant.set"} {
		d.tab.Await(text)
	}
	d.tab.Shoot("center-audit")
	d.tab.Type("input[name=action]", "delivery.replay")
	d.tab.Press("Filter")
	d.tab.Await("Clear")
	d.shows("replays", "tbody tr", 2)
	d.tab.Press("Seals")
	d.tab.Await("Each seal chains")
	d.tab.Shoot("center-seals")
}

// worksWithoutScriptAndByKeyboard makes a dry run without one click and without
// one line of script.
func (d *desk) worksWithoutScriptAndByKeyboard() {
	d.tab.Script(false)
	d.tab.Go("/console/tasks/new?consumer=" + consumerApp + "&tenant=7&collection=" + form + "&mode=DRY_RUN")
	d.tab.Keys("\t\r") // the first stop skips the navigation
	if at := d.tab.Path(); at != "/console/tasks/new?consumer="+consumerApp+"&tenant=7&collection="+form+"&mode=DRY_RUN" {
		d.t.Errorf("the page is %s", at)
	}
	d.tab.Keys("\t\t\t\t\t\t\t\t\t\t\r") // over the trail and the fields to the button
	d.tab.Await("The task is made.")
	d.tab.Await("Reload for newer figures.")
	d.tab.Script(true)
	d.awaitEnd(strings.TrimPrefix(d.tab.Path(), "/console/tasks/"))
	d.tab.Go(d.tab.Path())
	d.tab.Await("COLLECTION, dry run")
}

// runsNoForeignScriptOrStyle puts into the page what an attacker would.
func (d *desk) runsNoForeignScriptOrStyle() {
	d.tab.Go("/console/")
	d.tab.Await("Collections")
	browsertest.Evaluate[bool](d.tab, `(() => {
		const script = document.createElement("script"); script.textContent = "window.foreign = true"; document.body.append(script);
		const far = document.createElement("script"); far.src = "https://evil.example/x.js"; document.body.append(far);
		const box = document.createElement("div"); box.innerHTML = "<p id='styled' style='position:fixed'>x</p><img src='https://evil.example/x.png'>"; document.body.append(box);
		return true })()`)
	d.tab.AwaitTrouble("script-src", "style-src", "evil.example/x.js", "evil.example/x.png")
	if browsertest.Evaluate[bool](d.tab, "window.foreign === true") {
		d.t.Error("an inline script ran")
	}
	if style := browsertest.Evaluate[string](d.tab, "getComputedStyle(document.getElementById('styled')).position"); style != "static" {
		d.t.Errorf("an inline style made the position %s", style)
	}
	d.tab.Troubles()
}

// logsNoLineForALivePage: what an open page asks by itself is nobody's deed.
func (d *desk) logsNoLineForALivePage() {
	d.tab.Go("/console/")
	d.tab.AwaitLive()
	before := len(d.read(d.file("center.log")))
	logged := func() string { return d.read(d.file("center.log"))[before:] }
	d.await("the page is read again twice", func() bool { return strings.Count(logged(), "AdminService/ListCollections") >= 2 })
	for line := range strings.Lines(logged()) {
		if strings.Contains(line, `"msg":"call"`) && strings.Contains(line, `"caller":"operator:tester"`) && !strings.Contains(line, `"level":"debug"`) {
			d.t.Errorf("a page that stands open makes the log say %s", line)
		}
	}
}

// everyReadWritesNothing opens every page and form, live parts included.
func (d *desk) everyReadWritesNothing() {
	d.await("nothing is on its way", func() bool {
		return !strings.Contains(d.queued(), "PENDING") && !strings.Contains(d.queued(), "SENDING")
	})
	before := d.rows()
	sent := d.strings(d.center, `SELECT replace(delivery_id::text, '-', '') FROM lockstep.delivery LIMIT 1`)[0]
	for _, path := range []string{
		"", "tasks", "tasks/new", "tasks/" + d.task, "tasks/" + d.task + "/outcomes", "tasks/" + d.task + "/evidence", "tasks/" + d.task + "/cancel",
		"deliveries", "deliveries/" + sent + "/replay", "records", "records/replay", "grants", "grants/set", "targets", "targets/hall", "targets/hall/add",
		"targets/hall/remove/7", "audit", "audit/seals",
	} {
		d.tab.Go("/console/" + path)
		if status := d.tab.Status(); status != 200 {
			d.t.Errorf("%s: %d", path, status)
		}
	}
	if after := d.rows(); after != before {
		d.t.Errorf("a read wrote something:\n%s\nbefore\n%s", after, before)
	}
}

// rows digests every row of every table, with who wrote it last.
func (d *desk) rows() (digests string) {
	d.t.Helper()
	names, err := d.center.Query(d.t.Context(), `SELECT schemaname || '.' || tablename FROM pg_tables
		WHERE schemaname IN ('lockstep', 'answers') AND tablename NOT IN ('audit_seal', 'audit_sealer', 'delivery_position') ORDER BY 1`) // loops write these
	d.must(err)
	tables, err := pgx.CollectRows(names, pgx.RowTo[string])
	d.must(err)
	for _, table := range tables {
		var digest string
		d.must(d.center.QueryRow(d.t.Context(), `SELECT coalesce(md5(string_agg(xmin::text || t::text, '' ORDER BY ctid)), '') FROM `+table+` t`).Scan(&digest))
		digests += table + " " + digest + "\n"
	}
	return digests
}

// staysWithinItsRoleAndTenants: the console may do what its operator may.
func (d *desk) staysWithinItsRoleAndTenants() {
	d.tab.Go("/console/")
	d.tab.Press("Sign out")
	d.tab.Await("Sign in with the token")
	d.tab.Go("/console/tasks")
	d.tab.Await("Sign in with the token")
	d.tab.SignIn(d.viewer)
	d.tab.Await("vera\nviewer")
	d.tab.Await("PARTIAL")
	d.offersAViewerNothing()
	d.tab.Go("/console/records?key=" + strings.Repeat("0", 32) + "&tenant=7&collection=" + form)
	d.tab.Await("PERMISSION_DENIED")
	if status := d.tab.Status(); status != 403 {
		d.t.Errorf("a viewer's look at content: %d", status)
	}
	d.tab.Go("/console/tasks/new?consumer=" + consumerApp + "&tenant=7&collection=" + form)
	d.tab.Await("the role operator is needed")
	d.shows("a form", "main form", 0)
	d.tab.Shoot("center-denied")
	// A page from before the role was taken away still has its button.
	sent := fmt.Sprintf(`fetch("/console/tasks/new", {method: "POST", body: new URLSearchParams({consumer: %q, tenant: 7, collection: %q, scope: "COLLECTION"})}).then((r) => r.status)`, consumerApp, form)
	if status := browsertest.Evaluate[int](d.tab, sent); status != 403 {
		d.t.Errorf("a viewer's task: %d", status)
	}

	d.tab.Press("Sign out")
	d.tab.Await("Sign in with the token")
	d.tab.SignIn(d.other)
	d.tab.Await("otto\noperator")
	d.tab.Await("Nothing is granted yet.")
	d.shows("what an operator may do", `a[href="/console/tasks/new"]`, 1)
	d.shows("what is of every tenant", `nav a[href="/console/audit"]`, 0)
	d.tab.Shoot("center-empty")
	d.tab.Press("Grants") // which an admin decides on
	d.tab.Await("Nothing is granted yet.")
	d.shows("what an admin may do", `main a[href*="/console/grants/set"]`, 0)
	d.tab.Go("/console/tasks/" + d.task)
	d.tab.Await("TASK_NOT_FOUND")
	d.tab.Shoot("center-not-found")
	d.tab.Go("/console/audit")
	d.tab.Await("PERMISSION_DENIED")
}

// offersAViewerNothing: no page has a button or a link to what is refused.
func (d *desk) offersAViewerNothing() {
	for _, path := range []string{
		"", "tasks", "tasks/" + d.task, "tasks/" + d.task + "/outcomes", "tasks/" + d.task + "/evidence", "deliveries?state=DONE", "grants", "targets", "targets/hall", "audit",
	} {
		d.tab.Go("/console/" + path)
		if status := d.tab.Status(); status != 200 {
			d.t.Errorf("%s: %d", path, status)
		}
		d.shows(path+": what a viewer may not", `main form[method=post], a[href*="/new"], a[href$="/cancel"], a[href*="/replay"], a[href*="/set"], a[href$="/add"], a[href*="/remove/"], a[href*="/records"]`, 0)
	}
	d.tab.Go("/console/tasks/" + d.task)
	d.tab.Await("Evidence")
	d.tab.Shoot("center-task-viewer")
}

// stopsAtOnce: an open live page does not keep the service from stopping.
func (d *desk) stopsAtOnce() {
	d.tab.Go("/console/")
	d.tab.AwaitLive()
	began := time.Now()
	d.must(d.node.Stop())
	if took := time.Since(began); took > 8*time.Second { // it would be cut after ten
		d.t.Errorf("stopping took %s", took)
	}
	d.tab.Await("not connected")
	d.tab.Go("about:blank")
	d.tab.Troubles() // the browser said, once or more, that nobody answers
}
