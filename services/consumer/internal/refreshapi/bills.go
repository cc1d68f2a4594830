package refreshapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/bills"
	"lockstep.dev/services/internal/cursor"
)

// ListBills lists snapshots by month, station and id, all descending.
func (s *Server) ListBills(ctx context.Context, req *consumerv1.ListBillsRequest) (*consumerv1.ListBillsResponse, error) {
	reader, err := s.bills(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	page, next, err := reader.List(ctx, filterFromProto(req.GetFilter()), size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListBillsResponse{NextPageToken: next}
	for i := range page {
		answer.Bills = append(answer.Bills, billToProto(&page[i]))
	}
	return answer, nil
}

// StationSummary sums up stations, by their ids.
func (s *Server) StationSummary(ctx context.Context, req *consumerv1.StationSummaryRequest) (*consumerv1.StationSummaryResponse, error) {
	reader, err := s.bills(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	page, next, err := reader.Stations(ctx, filterFromProto(req.GetFilter()), size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.StationSummaryResponse{NextPageToken: next}
	for i := range page {
		b := &page[i]
		answer.Stations = append(answer.Stations, &consumerv1.StationBills{
			StationId: b.StationID, Bills: b.Bills,
			PlannedAmount: b.PlannedAmount, ActualPaidAmount: b.ActualPaidAmount, DifferenceAmount: b.DifferenceAmount,
			PaymentCount: b.PaymentCount, FailCount: b.FailCount, Anomalous: b.Anomalous, LatestDiffId: b.LatestDiffID,
			LatestPaymentStatus: b.LatestPaymentStatus, LatestExternalStatus: b.LatestExternalStatus, LatestStatusTime: stamp(b.LatestStatusTime),
		})
	}
	return answer, nil
}

// ExportBills streams CSV.
func (s *Server) ExportBills(req *consumerv1.ExportBillsRequest, stream grpc.ServerStreamingServer[consumerv1.ExportBillsResponse]) error {
	reader, err := s.bills(stream.Context())
	if err != nil {
		return err
	}
	return reader.Export(stream.Context(), filterFromProto(req.GetFilter()), func(text string) error {
		return stream.Send(&consumerv1.ExportBillsResponse{Csv: text})
	})
}

func (s *Server) bills(ctx context.Context) (*bills.Reader, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if s.Bills == nil {
		return nil, notKept(bills.Name)
	}
	return s.Bills, nil
}

func filterFromProto(f *consumerv1.BillFilter) bills.Filter {
	return bills.Filter{
		StationIDs: f.GetStationIds(), FirstMonth: f.GetFirstMonth(), LastMonth: f.GetLastMonth(), PartnerOrgID: f.GetPartnerOrgId(),
		ProjectCompanyIDs: f.GetProjectCompanyIds(), PaymentOrderNo: f.GetPaymentOrderNo(),
		PaymentStatuses: f.GetPaymentStatuses(), ExternalStatuses: f.GetExternalStatuses(), Anomalous: f.GetAnomalous(),
	}
}

func billToProto(b *bills.Bill) *consumerv1.Bill {
	return &consumerv1.Bill{
		DiffId: b.DiffID, StationId: b.StationID, BillMonth: b.BillMonth, PartnerOrgId: b.PartnerOrgID, PartnerBillId: b.PartnerBillID,
		SmallBillId: b.SmallBillID, SmallStationNo: b.SmallStationNo, ProjectCompanyId: b.ProjectCompanyID,
		LatestPaymentOrderId: b.LatestPaymentOrderID, LatestOrderBillId: b.LatestOrderBillID, PaymentOrderNo: b.PaymentOrderNo,
		SettlementMonth: b.SettlementMonth, PlannedAmount: b.PlannedAmount, ActualPaidAmount: b.ActualPaidAmount,
		DifferenceAmount: b.DifferenceAmount, Anomalous: b.Anomalous(), TreasuryFailAmount: b.TreasuryFailAmount, FailReason: b.FailReason,
		PaymentCount: b.PaymentCount, FailCount: b.FailCount, LatestPaymentTime: stamp(b.LatestPaymentTime),
		PaymentStatus: b.PaymentStatus, ExternalStatus: b.ExternalStatus, DataSources: b.DataSources,
		LatestStatusTime: stamp(b.LatestStatusTime), LatestStatusRank: b.LatestStatusRank,
		PayeeAccountName: b.PayeeAccountName, PayeeOpenBank: b.PayeeOpenBank, PayeeAccountNo: b.PayeeAccountNo,
		RefreshVersion: b.RefreshVersion, LastRefreshTime: timestamppb.New(b.LastRefreshTime), RefreshSource: b.RefreshSource,
	}
}
