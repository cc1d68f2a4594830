package bills

import (
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	exportPage  = 500
	exportChunk = 64 << 10 // a message of a stream stays far below its limit
)

var exportHead = []string{
	"bill_month", "station_id", "diff_id", "partner_org_id", "partner_bill_id", "small_bill_id", "small_station_no", "project_company_id",
	"payment_order_no", "settlement_month", "planned_amount", "actual_paid_amount", "difference_amount", "anomaly_flag", "treasury_fail_amount", "fail_reason",
	"payment_count", "fail_count", "payment_status", "external_status", "data_sources", "latest_payment_time", "latest_update_time", "latest_status_time",
	"payee_account_name", "payee_open_bank", "payee_account_no", "sharing_card_name", "sharing_card_bank", "sharing_card_no",
	"refresh_version", "last_refresh_time", "refresh_source",
}

// Export yields bills as CSV in the list's order: a head line, then chunks that
// end with a line. It holds one page in memory and no transaction open; a row
// that is refreshed meanwhile appears once, as it was when its page was read.
func (r *Reader) Export(ctx context.Context, f Filter, yield func(text string) error) error {
	var text strings.Builder
	w := csv.NewWriter(&text)
	send := func() error {
		w.Flush()
		if err := w.Error(); err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
		if text.Len() == 0 {
			return nil
		}
		chunk := text.String()
		text.Reset()
		return yield(chunk)
	}
	if err := w.Write(exportHead); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	var after *[3]int64
	for {
		bills, err := r.page(ctx, f, exportPage, after)
		if err != nil {
			return err
		}
		for i := range bills {
			if err := w.Write(bills[i].cells()); err != nil {
				return fmt.Errorf("write CSV: %w", err)
			}
			if w.Flush(); text.Len() >= exportChunk {
				if err := send(); err != nil {
					return err
				}
			}
		}
		if len(bills) < exportPage {
			return send()
		}
		place := bills[len(bills)-1].place()
		after = &place
	}
}

func (b *Bill) cells() []string {
	sources := make([]string, len(b.DataSources))
	for i, source := range b.DataSources {
		sources[i] = whole(source)
	}
	return []string{
		whole(b.BillMonth), whole(b.StationID), whole(b.DiffID), whole(b.PartnerOrgID), optional(b.PartnerBillID), optional(b.SmallBillID),
		harmless(b.SmallStationNo), optional(b.ProjectCompanyID), harmless(b.PaymentOrderNo), unlessZero(b.SettlementMonth),
		b.PlannedAmount, b.ActualPaidAmount, b.DifferenceAmount, whole(b.AnomalyFlag), b.TreasuryFailAmount, harmless(b.FailReason),
		whole(b.PaymentCount), whole(b.FailCount), whole(b.PaymentStatus), whole(b.ExternalStatus), strings.Join(sources, " "),
		moment(b.LatestPaymentTime), moment(b.LatestUpdateTime), moment(b.LatestStatusTime),
		harmless(b.PayeeAccountName), harmless(b.PayeeOpenBank), harmless(b.PayeeAccountNo),
		harmless(b.SharingCardName), harmless(b.SharingCardBank), harmless(b.SharingCardNo),
		whole(b.RefreshVersion), moment(&b.LastRefreshTime), harmless(b.RefreshSource),
	}
}

func whole[T int32 | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

func unlessZero(n int32) string {
	if n == 0 {
		return ""
	}
	return whole(n)
}

func optional(n *int64) string {
	if n == nil {
		return ""
	}
	return whole(*n)
}

func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// harmless keeps a spreadsheet from running a text as a formula.
func harmless(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
