package console

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	shell "lockstep.dev/services/internal/console"
)

func number(n int64) string { return strconv.FormatInt(n, 10) }

type workList struct {
	Filter shell.Filter
	Work   []*consumerv1.Work
	Pager  shell.Pager
}

// workList shows accepted instructions, newest first.
func (p *pages) workList(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	states, err := valueOf[consumerv1.WorkState](r, "state", "WORK_STATE_", consumerv1.WorkState_value)
	if err != nil {
		return shell.View{}, err
	}
	listed, err := p.admin.ListWork(ctx, &consumerv1.ListWorkRequest{
		TenantId: tenant, CollectionId: r.Value("collection"), States: states, PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Work", Data: workList{
		Filter: r.Filter(tenantField(), collectionField(), shell.Field{
			Name: "state", Label: "State", Kind: shell.Choice,
			Options: choices("QUEUED", "RUNNING", "REPORTING", "PARKED", "COMPLETED", "PARTIAL", "FAILED", "CANCELLED"),
		}),
		Work: listed.GetWork(), Pager: r.Pager(listed.GetNextPageToken()),
	}}, nil
}

type workTask struct {
	*consumerv1.Work

	Who    shell.Who
	Ended  bool
	Record string // where the page of a RECORD task's record is
	Steps  []step

	// Not read for the live part.
	Filter   shell.Filter
	Outcomes []outcome
	Pager    shell.Pager
}

// step is a line of a task's way.
type step struct {
	What, More string
	At         *timestamppb.Timestamp
}

// outcome is a difference, with where its record is explained.
type outcome struct {
	*consumerv1.Outcome

	Record string
}

// Center and Local are the sides' revisions; "" where a side has no row.
func (o outcome) Center() string { return side(o.CenterRevision, o.CenterDeleted) }
func (o outcome) Local() string  { return side(o.LocalRevision, o.LocalDeleted) }

func side(revision *int64, deleted *bool) string {
	switch {
	case revision == nil:
		return ""
	case deleted != nil && *deleted:
		return number(*revision) + ", deleted"
	default:
		return number(*revision)
	}
}

// workTask shows one task: how far it is, what it found, and what became of that.
func (p *pages) workTask(ctx context.Context, r *shell.Request) (shell.View, error) {
	got, err := p.admin.GetWork(ctx, &consumerv1.GetWorkRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.View{}, err
	}
	w := got.GetWork()
	page := workTask{Work: w, Who: r.Who, Ended: w.GetEndedAt() != nil, Steps: stepsOf(w)}
	if w.GetKey() != "" {
		page.Record = recordHref(w, w.GetKey())
	}
	view := shell.View{Title: "Task " + w.GetTaskId(), Trail: []shell.Link{{Label: "Work", Path: "work"}}, Still: page.Ended}
	if !redrawn(r) {
		listed, err := p.admin.ListOutcomes(ctx, &consumerv1.ListOutcomesRequest{
			TaskId: w.GetTaskId(), Class: r.Value("class"), Outcome: r.Value("outcome"), PageSize: pageRows, PageToken: r.Value(shell.PageToken),
		})
		if err != nil {
			return shell.View{}, err
		}
		for _, o := range listed.GetOutcomes() {
			page.Outcomes = append(page.Outcomes, outcome{Outcome: o, Record: recordHref(w, o.GetKey())})
		}
		page.Filter, page.Pager = outcomeFilter(r), r.Pager(listed.GetNextPageToken())
	}
	view.Data = page
	return view, nil
}

func outcomeFilter(r *shell.Request) shell.Filter {
	var classes []string
	for _, class := range protocol.Classes() {
		classes = append(classes, string(class))
	}
	return r.Filter(
		shell.Field{Name: "class", Label: "Class", Kind: shell.Choice, Options: choices(classes...)},
		shell.Field{
			Name: "outcome", Label: "Outcome", Kind: shell.Choice,
			Options: choices("REPAIRED", "SETTLED", "RETIRED", "REPORTED", "DEFERRED", "EXHAUSTED", "QUARANTINED"),
		})
}

func recordHref(w *consumerv1.Work, key string) string {
	return shell.Href(with("record", "tenant", number(w.GetTenantId()), "collection", w.GetCollectionId(), "key", key))
}

// stepsOf tells a task's way as far as its row knows it.
func stepsOf(w *consumerv1.Work) []step {
	steps := []step{{What: "Accepted", At: w.GetCreatedAt()}}
	if w.GetCenterRowsScanned() > 0 || w.GetLocalRowsScanned() > 0 || w.GetPhase() == evidencev1.Phase_PHASE_SCANNING {
		steps = append(steps, step{What: "Scanning", More: fmt.Sprintf("%d rows of the manifest, %d local ones", w.GetCenterRowsScanned(), w.GetLocalRowsScanned())})
	}
	switch w.GetPhase() {
	case evidencev1.Phase_PHASE_RETIRING:
		steps = append(steps, step{What: "Retiring", More: "what only this side has"})
	case evidencev1.Phase_PHASE_REPORTING:
		steps = append(steps, step{What: "Reporting", More: "until the center acknowledges it", At: w.GetUpdatedAt()})
	case evidencev1.Phase_PHASE_WAITING:
		steps = append(steps, step{What: "Waiting", More: w.GetWaitingBecause(), At: w.GetUpdatedAt()})
	default:
	}
	if w.GetEndedAt() != nil {
		steps = append(steps, step{What: "Ended " + shell.Word(w.GetState()), More: w.GetCode(), At: w.GetEndedAt()})
	}
	return steps
}

// aboutWork is what an action's form says of its task.
func (p *pages) aboutWork(ctx context.Context, r *shell.Request, form shell.Form) (shell.Form, error) {
	got, err := p.admin.GetWork(ctx, &consumerv1.GetWorkRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.Form{}, err
	}
	w := got.GetWork()
	form.Back = shell.Path("work", w.GetTaskId())
	form.Trail = []shell.Link{{Label: "Work", Path: "work"}, {Label: "Task " + w.GetTaskId(), Path: form.Back}}
	form.Facts = []shell.Fact{
		{Label: "Task", Value: w.GetTaskId()},
		{Label: "Tenant", Value: number(w.GetTenantId())},
		{Label: "Collection", Value: w.GetCollectionId()},
		{Label: "State", Value: shell.Word(w.GetState())},
	}
	form.Fields = []shell.Field{shell.Reason()}
	return form, nil
}

func (p *pages) pauseForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.aboutWork(ctx, r, shell.Form{
		Title: "Pause a task", Button: "Pause it",
		Explain: "A run in hand goes on to its end. After that no worker takes the task until somebody resumes it; it keeps its checkpoint, and the center is told that it waits.",
	})
}

func (p *pages) pause(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.admin.PauseWork(ctx, &consumerv1.PauseWorkRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("work", got.GetWork().GetTaskId()), Say: "The task is paused."}, err
}

func (p *pages) resumeForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	return p.aboutWork(ctx, r, shell.Form{
		Title: "Resume a task", Button: "Resume it", Explain: "The task is due at once and goes on from its checkpoint.",
	})
}

func (p *pages) resume(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.admin.ResumeWork(ctx, &consumerv1.ResumeWorkRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("work", got.GetWork().GetTaskId()), Say: "The task goes on."}, err
}
