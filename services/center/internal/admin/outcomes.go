package admin

import (
	"context"

	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/internal/cursor"
)

// defaultRows is a page of the lists that are about one task.
const defaultRows = 100

// passed is the place of the last item shown: the attempt, and how many of its
// items were passed. Reports are frozen, so the place stays.
type passed struct {
	Attempt int `json:"a"`
	Items   int `json:"n"`
}

// ListOutcomes lists what the stored reports name one by one, the newest
// attempt first. One report at a time is held.
func (s *Server) ListOutcomes(ctx context.Context, req *centerv1.ListOutcomesRequest) (*centerv1.ListOutcomesResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	if req.GetAttempt() < 0 {
		return nil, fault.New(fault.InvalidArgument, "malformed list request").WithField("attempt", "is not negative")
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	list := cursor.Of("outcomes", tk.ID, req.GetCode(), req.GetAttempt())
	from, err := cursor.Resume[passed](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	p := outcomePage{list: list, code: req.GetCode(), size: size, out: &centerv1.ListOutcomesResponse{}}
	if from != nil {
		p.from = *from
	}
	if err := s.Store.EachResult(ctx, tk.ID, int(req.GetAttempt()), p.from.Attempt, p.add); err != nil {
		return nil, err
	}
	return p.out, nil
}

// outcomePage is a page in the making.
type outcomePage struct {
	list cursor.List
	code string
	from passed
	size int
	last passed // of the page so far
	out  *centerv1.ListOutcomesResponse
}

// add takes the items of one report, as far as the page has room.
func (p *outcomePage) add(r store.Result) (more bool, err error) {
	_, report, err := storedReport(r)
	if err != nil {
		return false, err
	}
	for i := range report.Items {
		if r.Attempt == p.from.Attempt && i < p.from.Items || p.code != "" && report.Items[i].Code != p.code {
			continue
		}
		if len(p.out.GetOutcomes()) == p.size {
			p.out.NextPageToken = cursor.After(p.list, p.last)
			return false, nil
		}
		p.out.Outcomes = append(p.out.Outcomes, &centerv1.ListOutcomesResponse_Outcome{
			Attempt: int32(r.Attempt), Item: itemView(&report.Items[i]), //nolint:gosec // bounded by max_dispatch_attempts
		})
		p.last = passed{Attempt: r.Attempt, Items: i + 1}
	}
	return true, nil
}
