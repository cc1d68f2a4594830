package bills

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/services/consumer/internal/refresh"
)

// resolveFetch is how many scopes are in memory at once.
const resolveFetch = 1000

// Resolve yields the scopes of a request, ordered by station and month.
func (p *Projection) Resolve(ctx context.Context, tx pgx.Tx, payload []byte, yield func(refresh.Scope) error) error {
	plan, err := p.plan(payload)
	if err != nil {
		return err
	}
	query, args := plan.scopes()
	if _, err := tx.Exec(ctx, `DECLARE bill_scopes NO SCROLL CURSOR FOR `+query, args...); err != nil {
		return fmt.Errorf("look for scopes: %w", err)
	}
	for {
		rows, err := tx.Query(ctx, fmt.Sprintf(`FETCH %d FROM bill_scopes`, resolveFetch))
		if err != nil {
			return fmt.Errorf("read scopes: %w", err)
		}
		scopes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[refresh.Scope])
		if err != nil {
			return fmt.Errorf("read scopes: %w", err)
		}
		for _, s := range scopes {
			if err := yield(s); err != nil {
				return err
			}
		}
		if len(scopes) < resolveFetch {
			break
		}
	}
	if _, err := tx.Exec(ctx, `CLOSE bill_scopes`); err != nil {
		return fmt.Errorf("look for scopes: %w", err)
	}
	return nil
}

// scopes is the query of a plan's scopes.
func (p *plan) scopes() (query string, args []any) {
	if r := p.Review; r != nil {
		return reviewScopes, []any{r.PaymentOrderID, r.DataVersion, r.SubmitRound, r.FirstOrderBillID, r.LastOrderBillID}
	}
	stations, months := make([]int64, len(p.Scopes)), make([]int32, len(p.Scopes))
	for i, s := range p.Scopes {
		stations[i], months[i] = int64(s.StationID), int32(s.Month)
	}
	s := &p.selectors
	wide := s.MonthFrom != 0 || s.MonthTo != 0 || len(s.CompanyIDs) > 0 || s.PartnerOrgID != 0
	return selectedScopes, []any{
		stations, months, ids(s.DiffIDs), ids(s.PaymentOrderIDs), texts(s.PaymentOrderNos), s.ImportBatchNo,
		wide, int32(s.MonthFrom), int32(s.MonthTo), ids(s.CompanyIDs), int64(s.PartnerOrgID),
	}
}

func ids(list []id) []int64 {
	plain := make([]int64, len(list))
	for i, each := range list {
		plain[i] = int64(each)
	}
	return plain
}

func texts(list []string) []string { return append([]string{}, list...) }

const reviewScopes = `SELECT DISTINCT station_id, bill_month::int FROM bills.payment_order_bill
	WHERE payment_order_id = $1 AND data_version = $2 AND submit_round = $3 AND NOT deleted AND line_type = 10
		AND id BETWEEN $4 AND $5 AND station_id > 0 AND bill_month IS NOT NULL
	ORDER BY 1, 2`

// selectedScopes is the union of all selectors. Orders, their lines and import
// records count whatever their status is: the question is only where to look.
const selectedScopes = `SELECT DISTINCT station_id, bill_month FROM (
	SELECT station_id, bill_month FROM unnest($1::bigint[], $2::int[]) given (station_id, bill_month)
	UNION ALL
	SELECT station_id, bill_month FROM bills.income_difference WHERE id = ANY ($3::bigint[])
	UNION ALL
	-- A difference that is gone is found where its snapshot was kept.
	SELECT station_id, bill_month FROM bills.bill_snapshot WHERE diff_id = ANY (ARRAY(
		SELECT unnest($3::bigint[]) EXCEPT SELECT id FROM bills.income_difference WHERE id = ANY ($3::bigint[])))
	UNION ALL
	SELECT station_id, bill_month FROM bills.payment_order_bill WHERE payment_order_id = ANY (ARRAY(
		SELECT unnest($4::bigint[]) UNION SELECT id FROM bills.payment_order WHERE payment_order_no = ANY ($5::text[])))
	UNION ALL
	SELECT station_id, bill_month FROM bills.import_record WHERE $6 <> '' AND import_batch_no = $6
	UNION ALL
	SELECT station_id, bill_month FROM bills.income_difference WHERE $7::bool
		AND ($8::int = 0 OR bill_month >= $8) AND ($9::int = 0 OR bill_month <= $9)
		AND (cardinality($10::bigint[]) = 0 OR project_company_id = ANY ($10)) AND ($11::bigint = 0 OR partner_org_id = $11)
) found (station_id, bill_month) WHERE station_id > 0 AND bill_month IS NOT NULL ORDER BY 1, 2`
