package console

import (
	"context"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
)

// The filter's words for what bills can be.
var (
	paymentStatuses  = []shell.Option{{Label: "any"}, {Value: "0", Label: "0 waiting"}, {Value: "30", Label: "30 paid"}, {Value: "40", Label: "40 failed"}, {Value: "60", Label: "60 partly paid"}}
	externalStatuses = []shell.Option{
		{Label: "any"},
		{Value: "2", Label: "2 waiting"},
		{Value: "3", Label: "3 failed so far"},
		{Value: "4", Label: "4 partly paid"},
		{Value: "5", Label: "5 paid"},
		{Value: "6", Label: "6 failed for good"},
	}
)

// billFields are a filter's; they are the same for bills, stations and CSV.
func billFields() []shell.Field {
	return []shell.Field{
		{Name: "stations", Label: "Stations, by id"},
		{Name: "from", Label: "From yyyyMM", Kind: shell.Number},
		{Name: "to", Label: "To yyyyMM", Kind: shell.Number},
		{Name: "partner", Label: "Partner", Kind: shell.Number},
		{Name: "companies", Label: "Companies, by id"},
		{Name: "order", Label: "Payment order"},
		{Name: "payment", Label: "Payment", Kind: shell.Choice, Options: paymentStatuses},
		{Name: "outside", Label: "Outside", Kind: shell.Choice, Options: externalStatuses},
		{Name: "anomalous", Label: "Only where paid and planned differ", Kind: shell.Check},
	}
}

// billFilter reads it; every field that can't be read is told.
func billFilter(r *shell.Request) (*consumerv1.BillFilter, error) {
	wrong := fault.New(fault.InvalidArgument, "the filter can't be read")
	whole := func(name string, text string, bits int) int64 {
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			wrong.WithField(name, "%.40q is no number", text)
		}
		return n
	}
	one := func(name string, bits int) int64 {
		if text := r.Value(name); text != "" {
			return whole(name, text, bits)
		}
		return 0
	}
	several := func(name string) (ids []int64) {
		for text := range strings.FieldsFuncSeq(r.Value(name), func(c rune) bool { return c == ',' || c == ' ' || c == ';' }) {
			ids = append(ids, whole(name, text, 64))
		}
		return ids
	}
	choice := func(name string) []int32 {
		if r.Value(name) == "" {
			return nil
		}
		return []int32{int32(one(name, 32))} //nolint:gosec // read as 32 bits
	}
	f := &consumerv1.BillFilter{
		StationIds: several("stations"), FirstMonth: int32(one("from", 32)), LastMonth: int32(one("to", 32)), //nolint:gosec // read as 32 bits
		PartnerOrgId: one("partner", 64), ProjectCompanyIds: several("companies"), PaymentOrderNo: r.Value("order"),
		PaymentStatuses: choice("payment"), ExternalStatuses: choice("outside"), Anomalous: r.Checked("anomalous"),
	}
	if len(wrong.Fields) > 0 {
		return nil, wrong
	}
	return f, nil
}

// withFilter leads to another page of the same bills.
func withFilter(r *shell.Request, path string, more ...string) string {
	var pairs []string
	for _, field := range billFields() {
		pairs = append(pairs, field.Name, r.Value(field.Name))
	}
	return shell.Href(with(path, append(pairs, more...)...))
}

// kept is of a page over a projection that a service need not keep.
type kept struct{ Not string } // why there is nothing; "" where it is kept

func (k *kept) or(err error) error {
	if fault.ReasonOf(err) == fault.NotFound {
		k.Not = status.Convert(err).Message()
		return nil
	}
	return err
}

type bills struct {
	kept

	Filter        shell.Filter
	Bills         []*consumerv1.Bill
	Pager         shell.Pager
	CSV, Stations string
}

// bills shows bill snapshots, newest month first.
func (p *pages) bills(ctx context.Context, r *shell.Request) (shell.View, error) {
	filter, err := billFilter(r)
	if err != nil {
		return shell.View{}, err
	}
	page := bills{Filter: r.Filter(billFields()...), CSV: withFilter(r, "bills/csv"), Stations: withFilter(r, "stations")}
	listed, err := p.refresh.ListBills(ctx, &consumerv1.ListBillsRequest{Filter: filter, PageSize: pageRows, PageToken: r.Value(shell.PageToken)})
	if err := page.or(err); err != nil {
		return shell.View{}, err
	}
	page.Bills, page.Pager = listed.GetBills(), r.Pager(listed.GetNextPageToken())
	return shell.View{Title: "Bills", Data: page}, nil
}

// billsCSV is all of the filtered bills.
func (p *pages) billsCSV(ctx context.Context, r *shell.Request) (shell.File, error) {
	filter, err := billFilter(r)
	if err != nil {
		return shell.File{}, err
	}
	stream, err := p.refresh.ExportBills(ctx, &consumerv1.ExportBillsRequest{Filter: filter})
	if err != nil {
		return shell.File{}, err
	}
	chunk, err := stream.Recv() // a refusal comes with the first
	if err != nil {
		return shell.File{}, err
	}
	return shell.File{Name: "bills.csv", Media: "text/csv; charset=utf-8", Write: func(w io.Writer) error {
		for {
			if _, err := io.WriteString(w, chunk.GetCsv()); err != nil {
				return err
			}
			var err error
			if chunk, err = stream.Recv(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}}, nil
}

type stations struct {
	kept

	Filter   shell.Filter
	Stations []station
	Pager    shell.Pager
	Bills    string
}

type station struct {
	*consumerv1.StationBills

	Its string // its bills
}

// stations sums up the filtered bills by station.
func (p *pages) stations(ctx context.Context, r *shell.Request) (shell.View, error) {
	filter, err := billFilter(r)
	if err != nil {
		return shell.View{}, err
	}
	page := stations{Filter: r.Filter(billFields()...), Bills: withFilter(r, "bills")}
	listed, err := p.refresh.StationSummary(ctx, &consumerv1.StationSummaryRequest{Filter: filter, PageSize: pageRows, PageToken: r.Value(shell.PageToken)})
	if err := page.or(err); err != nil {
		return shell.View{}, err
	}
	for _, summary := range listed.GetStations() {
		page.Stations = append(page.Stations, station{StationBills: summary, Its: withFilter(r, "bills", "stations", number(summary.GetStationId()))})
	}
	page.Pager = r.Pager(listed.GetNextPageToken())
	return shell.View{Title: "Stations", Data: page}, nil
}

type scores struct {
	kept

	Filter shell.Filter
	Score  *consumerv1.GetScoreResponse
}

// scores shows one candidate's row.
func (p *pages) scores(ctx context.Context, r *shell.Request) (shell.View, error) {
	candidate, err := r.Number("candidate")
	if err != nil {
		return shell.View{}, err
	}
	period, err := r.Number("period")
	if err != nil {
		return shell.View{}, err
	}
	if period < 0 || period > math.MaxInt32 {
		return shell.View{}, fault.New(fault.InvalidArgument, "a month is needed").WithField("period", "is yyyyMM")
	}
	page := scores{Filter: r.Filter(
		shell.Field{Name: "candidate", Label: "Candidate", Kind: shell.Number, Required: true},
		shell.Field{Name: "period", Label: "Period, as yyyyMM", Kind: shell.Number, Required: true})}
	page.Filter.Button = "Show"
	if candidate != 0 || period != 0 {
		page.Score, err = p.refresh.GetScore(ctx, &consumerv1.GetScoreRequest{CandidateId: candidate, Period: int32(period)})
		if err := page.or(err); err != nil {
			return shell.View{}, err
		}
	}
	return shell.View{Title: "Scores", Data: page}, nil
}
