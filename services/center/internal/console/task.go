package console

import (
	"context"
	"slices"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	shell "lockstep.dev/services/internal/console"
)

// fewOutcomes are shown on the task's own page.
const fewOutcomes = 10

type taskPage struct {
	*centerv1.Task

	Who      shell.Who
	Ended    bool
	Scanning bool // there is something to show the progress of
	Counts   *centerv1.Progress
	Events   []*centerv1.Event
	Earlier  bool // there are more events before those
	Results  []*centerv1.Result
	Outcomes []*centerv1.ListOutcomesResponse_Outcome
	More     bool // outcomes than are shown
}

// task asks for what the task's state makes possible: while it runs, twice.
func (p *pages) task(ctx context.Context, r *shell.Request) (shell.View, error) {
	id := r.Value("task")
	got, err := p.admin.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: id})
	if err != nil {
		return shell.View{}, err
	}
	t := got.GetTask()
	page := taskPage{Task: t, Who: r.Who, Ended: t.GetEndedAt() != nil, Counts: t.GetProgress()}
	if err := p.lastEvents(ctx, id, &page); err != nil {
		return shell.View{}, err
	}
	page.Scanning = !page.Ended && t.GetEstimate() != nil
	if page.Ended || t.GetAttempt() > 1 {
		if err := p.reports(ctx, id, &page); err != nil {
			return shell.View{}, err
		}
	}
	return shell.View{Title: "Task " + id, Trail: []shell.Link{{Label: "Tasks", Path: "tasks"}}, Data: page, Still: page.Ended}, nil
}

// lastEvents adds the end of what happened. A task has a handful of events; one
// that was dispatched for days has a few hundred.
func (p *pages) lastEvents(ctx context.Context, id string, page *taskPage) error {
	const most = 500
	for token, first := "", true; first || token != ""; first = false {
		got, err := p.admin.ListEvents(ctx, &centerv1.ListEventsRequest{TaskId: id, PageSize: most, PageToken: token})
		if err != nil {
			return err
		}
		page.Events = append(page.Events, got.GetEvents()...)
		if extra := len(page.Events) - listPage; extra > 0 {
			page.Events, page.Earlier = slices.Delete(page.Events, 0, extra), true
		}
		token = got.GetNextPageToken()
	}
	return nil
}

// reports adds what the attempts reported.
func (p *pages) reports(ctx context.Context, id string, page *taskPage) error {
	results, err := p.admin.ListResults(ctx, &centerv1.ListResultsRequest{TaskId: id})
	if err != nil {
		return err
	}
	page.Results = results.GetResults()
	if len(page.Results) == 0 {
		return nil
	}
	if page.Ended { // the last report is what counts, not the last progress
		page.Counts = page.Results[len(page.Results)-1].GetFigures()
	}
	outcomes, err := p.admin.ListOutcomes(ctx, &centerv1.ListOutcomesRequest{TaskId: id, PageSize: fewOutcomes})
	page.Outcomes, page.More = outcomes.GetOutcomes(), outcomes.GetNextPageToken() != ""
	return err
}

func (p *pages) watchTask(ctx context.Context, r *shell.Request, changed func()) error {
	stream, err := p.admin.WatchTask(ctx, &centerv1.WatchTaskRequest{TaskId: r.Value("task")})
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		changed()
	}
}

type outcomesPage struct {
	TaskID   string
	Filter   shell.Filter
	Outcomes []*centerv1.ListOutcomesResponse_Outcome
	Pager    shell.Pager
}

func (p *pages) outcomes(ctx context.Context, r *shell.Request) (shell.View, error) {
	attempt, err := r.Number("attempt")
	if err != nil {
		return shell.View{}, err
	}
	id := r.Value("task")
	got, err := p.admin.ListOutcomes(ctx, &centerv1.ListOutcomesRequest{
		TaskId: id, Code: r.Value("code"), Attempt: int32(min(max(attempt, -1), 1<<30)), PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{
		Title: "Differences left open", Trail: trailOf(&centerv1.Task{TaskId: id}),
		Data: outcomesPage{
			TaskID: id, Outcomes: got.GetOutcomes(), Pager: r.Pager(got.GetNextPageToken()),
			Filter: r.Filter(shell.Field{Name: "code", Label: "Code"}, shell.Field{Name: "attempt", Label: "Attempt", Kind: shell.Number}),
		},
	}, nil
}
