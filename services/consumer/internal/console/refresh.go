package console

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/fault"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
)

type refreshList struct {
	Who    shell.Who
	Filter shell.Filter
	Tasks  []*consumerv1.RefreshTask
	Pager  shell.Pager
}

// refreshList shows refresh tasks, newest first.
func (p *pages) refreshList(ctx context.Context, r *shell.Request) (shell.View, error) {
	states, err := valueOf[consumerv1.RefreshState](r, "state", "REFRESH_STATE_", consumerv1.RefreshState_value)
	if err != nil {
		return shell.View{}, err
	}
	listed, err := p.refresh.ListTasks(ctx, &consumerv1.ListTasksRequest{
		Projection: r.Value("projection"), States: states, BusinessKey: r.Value("key"), PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Refresh tasks", Data: refreshList{
		Who: r.Who,
		Filter: r.Filter(
			shell.Field{Name: "projection", Label: "Projection", Kind: shell.Choice, Options: choices("bills", "scores")},
			shell.Field{Name: "state", Label: "State", Kind: shell.Choice, Options: choices("PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED")},
			shell.Field{Name: "key", Label: "Business key"}),
		Tasks: listed.GetTasks(), Pager: r.Pager(listed.GetNextPageToken()),
	}}, nil
}

type refreshTask struct {
	*consumerv1.RefreshTask

	Who                        shell.Who
	Counts                     *consumerv1.RefreshCounts
	Scopes, Done, FailedScopes int64
	Cursor                     string
	Percent                    float64

	// What an operator can do in this state.
	CanWake, CanCancel, CanReopen bool

	// Not read for the live part.
	Filter shell.Filter
	Listed []*consumerv1.RefreshScope
	Pager  shell.Pager
}

// refreshTask shows one task, what its running generation came to, and its scopes.
func (p *pages) refreshTask(ctx context.Context, r *shell.Request) (shell.View, error) {
	got, err := p.refresh.GetTask(ctx, &consumerv1.GetTaskRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.View{}, err
	}
	t := got.GetTask()
	page := refreshTask{
		RefreshTask: t, Who: r.Who, Counts: got.GetCounts(), Scopes: got.GetScopes(), Done: got.GetScopesDone(), FailedScopes: got.GetScopesFailed(), Cursor: got.GetCursor(),
		Percent: percentOf(got.GetScopesDone(), got.GetScopes()),
	}
	switch t.GetState() {
	case consumerv1.RefreshState_REFRESH_STATE_PENDING, consumerv1.RefreshState_REFRESH_STATE_FAILED:
		page.CanWake, page.CanCancel = true, true
	case consumerv1.RefreshState_REFRESH_STATE_RUNNING:
		page.CanCancel = true
	case consumerv1.RefreshState_REFRESH_STATE_CANCELLED:
		page.CanReopen = true
	default: // the next request makes it go on
	}
	view := shell.View{Title: "Refresh of " + t.GetProjection(), Trail: []shell.Link{{Label: "Refresh", Path: "refresh"}}}
	view.Still = t.GetState() == consumerv1.RefreshState_REFRESH_STATE_SUCCESS || t.GetState() == consumerv1.RefreshState_REFRESH_STATE_CANCELLED
	if !redrawn(r) {
		states, err := valueOf[consumerv1.ScopeState](r, "state", "SCOPE_STATE_", consumerv1.ScopeState_value)
		if err != nil {
			return shell.View{}, err
		}
		listed, err := p.refresh.ListScopes(ctx, &consumerv1.ListScopesRequest{
			TaskId: t.GetTaskId(), States: states, PageSize: pageRows, PageToken: r.Value(shell.PageToken),
		})
		if err != nil {
			return shell.View{}, err
		}
		page.Filter = r.Filter(shell.Field{Name: "state", Label: "State", Kind: shell.Choice, Options: choices("PENDING", "DONE", "FAILED")})
		page.Listed, page.Pager = listed.GetScopes(), r.Pager(listed.GetNextPageToken())
	}
	view.Data = page
	return view, nil
}

func percentOf(done, all int64) float64 {
	if all == 0 {
		return 0
	}
	return 100 * float64(done) / float64(all)
}

// maxPayload leaves room for the rest of a form.
const maxPayload = 48 << 10

// requestFields ask for a refresh request.
func requestFields() []shell.Field {
	return []shell.Field{
		{Name: "projection", Label: "Projection", Kind: shell.Choice, Options: []shell.Option{{Value: "bills", Label: "bills"}, {Value: "scores", Label: "scores"}}},
		{
			Name: "payload", Label: "Request", Kind: shell.LongText, Required: true, Max: maxPayload,
			Help: `The projection's own JSON, for instance {"scopes": [{"station_id": 17, "bill_month": "202608"}]} for bills.`,
		},
		{Name: "business_key", Label: "Own business key", Help: "Empty for the computed one; an own key is for requests that only update."},
		{Name: "source_event_id", Label: "Source event", Help: "The same one again changes nothing."},
		{Name: "trigger", Label: "Trigger", Help: "What the rows are marked with; you, if it is empty."},
		{Name: "replace", Label: "The own key is to stand for another range from now on", Kind: shell.Check},
	}
}

func requestOf(r *shell.Request) *consumerv1.RefreshRequest {
	return &consumerv1.RefreshRequest{
		Projection: r.Value("projection"), Payload: r.Value("payload"), BusinessKey: r.Value("business_key"),
		SourceEventId: r.Value("source_event_id"), Trigger: r.Value("trigger"), Replace: r.Checked("replace"),
	}
}

func (p *pages) submitForm(context.Context, *shell.Request) (shell.Form, error) {
	return shell.Form{
		Title: "Submit a refresh request", Button: "Submit it", Back: "refresh", Trail: []shell.Link{{Label: "Refresh", Path: "refresh"}},
		Explain: "A request makes a task, or one more generation of a known one. A worker takes it.", Fields: requestFields(),
	}, nil
}

func (p *pages) submit(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.refresh.Submit(ctx, &consumerv1.SubmitRequest{Request: requestOf(r)})
	if err != nil {
		return shell.Done{}, err
	}
	return submitted(got.GetSubmission())
}

// submitted leads to the task, or says what refused it.
func submitted(s *consumerv1.Submission) (shell.Done, error) {
	switch s.GetOutcome() {
	case "REFUSED":
		return shell.Done{}, fault.New(fault.Reason(s.GetCode()), "the request was refused: %s", s.GetMessage())
	case "UNCHANGED":
		return shell.Done{To: shell.Path("refresh", s.GetTaskId()), Say: "This source event was accepted before: nothing changed."}, nil
	case "CREATED":
		return shell.Done{To: shell.Path("refresh", s.GetTaskId()), Say: "The request made this task."}, nil
	default:
		return shell.Done{To: shell.Path("refresh", s.GetTaskId()), Say: fmt.Sprintf("The request is generation %d of this task.", s.GetGeneration())}, nil
	}
}

func (p *pages) nowForm(context.Context, *shell.Request) (shell.Form, error) {
	return shell.Form{
		Title: "Refresh now", Button: "Refresh now", Back: "refresh", Trail: []shell.Link{{Label: "Refresh", Path: "refresh"}},
		Explain: "The request is submitted and worked on before the page answers, for at most 18 seconds. What is left then goes on by itself.", Fields: requestFields(),
	}, nil
}

func (p *pages) now(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.refresh.RefreshNow(ctx, &consumerv1.RefreshNowRequest{Request: requestOf(r)})
	if err != nil {
		return shell.Done{}, err
	}
	done, err := submitted(got.GetSubmission())
	switch got.GetOutcome() {
	case "DONE":
		done.Say = "The refresh is done."
	case "FAILED":
		done.Say = "The refresh failed; the task says why."
	case "IN_PROGRESS":
		done.Say = "The refresh goes on by itself."
	}
	return done, err
}

// aboutRefresh is what an action's form says of its task.
func (p *pages) aboutRefresh(ctx context.Context, r *shell.Request, form shell.Form) (shell.Form, error) {
	got, err := p.refresh.GetTask(ctx, &consumerv1.GetTaskRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.Form{}, err
	}
	t := got.GetTask()
	form.Back = shell.Path("refresh", t.GetTaskId())
	form.Trail = []shell.Link{{Label: "Refresh", Path: "refresh"}, {Label: "Refresh of " + t.GetProjection(), Path: form.Back}}
	form.Facts = []shell.Fact{
		{Label: "Projection", Value: t.GetProjection()}, {Label: "Business key", Value: t.GetBusinessKey()}, {Label: "State", Value: shell.Word(t.GetState())},
	}
	return form, nil
}

func (p *pages) wakeForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.aboutRefresh(ctx, r, shell.Form{
		Title: "Retry a refresh task", Button: "Wake it", Explain: "A worker looks at the task at once. Due time and budget still hold; Force sets them aside.",
	})
}

func (p *pages) wake(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.refresh.GetTask(ctx, &consumerv1.GetTaskRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.Done{}, err
	}
	_, err = p.refresh.Retry(ctx, &consumerv1.RetryRequest{TaskCodes: []string{got.GetTask().GetTaskCode()}})
	return shell.Done{To: shell.Path("refresh", r.Value("task")), Say: "The task was woken."}, err
}

func (p *pages) forceForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.withReason(ctx, r, shell.Form{
		Title: "Force a refresh task", Button: "Force it", Explain: "The task is due now, with its whole budget of tries.",
	})
}

func (p *pages) withReason(ctx context.Context, r *shell.Request, form shell.Form) (shell.Form, error) {
	form.Fields = []shell.Field{shell.Reason()}
	return p.aboutRefresh(ctx, r, form)
}

func (p *pages) force(ctx context.Context, r *shell.Request) (shell.Done, error) {
	_, err := p.refresh.Force(ctx, &consumerv1.ForceRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("refresh", r.Value("task")), Say: "The task is due now."}, err
}

func (p *pages) cancelForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.withReason(ctx, r, shell.Form{
		Title: "Cancel a refresh task", Button: "Cancel it", Danger: true,
		Explain: "The task ends. Of a running one nothing more is written, and what is not committed yet is undone. Requests for it are refused until somebody reopens it.",
	})
}

func (p *pages) cancel(ctx context.Context, r *shell.Request) (shell.Done, error) {
	_, err := p.refresh.Cancel(ctx, &consumerv1.CancelRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("refresh", r.Value("task")), Say: "The task is cancelled."}, err
}

func (p *pages) reopenForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.withReason(ctx, r, shell.Form{
		Title: "Reopen a refresh task", Button: "Reopen it", Explain: "The task rises again as a new generation: everything of it is looked at again.",
	})
}

func (p *pages) reopen(ctx context.Context, r *shell.Request) (shell.Done, error) {
	_, err := p.refresh.Reopen(ctx, &consumerv1.ReopenRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("refresh", r.Value("task")), Say: "The task is open again."}, err
}
