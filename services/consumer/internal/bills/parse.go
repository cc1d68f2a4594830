package bills

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/refresh"
)

const (
	maxItems = 100_000 // of one list; a million-id range is a month range
	maxText  = 128     // of an order number, a batch number
)

// plan is a request in its normal form: lists ascending and without repetition,
// months as yyyyMM. Its JSON is what a generation freezes.
type plan struct {
	Mode        refresh.Mode `json:"mode"`
	BusinessKey string       `json:"business_key,omitempty"` // the caller's own
	Trigger     string       `json:"trigger,omitempty"`
	Review      *review      `json:"review,omitempty"`
	selectors
}

// selectors name scopes; their union is refreshed. Months, companies and
// partner are one selector: each given part narrows it.
type selectors struct {
	DiffIDs         []id     `json:"diff_ids,omitempty"`
	Scopes          []scope  `json:"scopes,omitempty"`
	PaymentOrderIDs []id     `json:"payment_order_ids,omitempty"`
	PaymentOrderNos []string `json:"payment_order_nos,omitempty"`
	ImportBatchNo   string   `json:"import_batch_no,omitempty"`
	MonthFrom       month    `json:"month_from,omitempty"`
	MonthTo         month    `json:"month_to,omitempty"`
	CompanyIDs      []id     `json:"project_company_ids,omitempty"`
	PartnerOrgID    id       `json:"partner_org_id,omitempty"`
}

type scope struct {
	StationID id    `json:"station_id"`
	Month     month `json:"bill_month"`
}

// request is what may stand in the JSON of a request.
type request struct {
	plan

	SourceEventID string `json:"source_event_id"`
	Replace       bool   `json:"replace"`
}

// id is positive. It is read from a number or, as protobuf's JSON has it, from
// a string of digits.
type id int64

// UnmarshalJSON reads 7 and "7".
func (i *id) UnmarshalJSON(text []byte) error {
	digits := string(text)
	if unquoted, err := strconv.Unquote(digits); err == nil {
		digits = unquoted
	}
	value, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || value <= 0 || strconv.FormatInt(value, 10) != digits {
		return fmt.Errorf("%s is not a positive whole number", text)
	}
	*i = id(value)
	return nil
}

// month is written yyyyMM and read as yyyyMM or yyyy-MM, always in quotes.
type month int32

// UnmarshalJSON reads "202608" and "2026-08".
func (m *month) UnmarshalJSON(text []byte) error {
	var word string
	if err := json.Unmarshal(text, &word); err != nil {
		return fmt.Errorf("%s is not a month in quotes", text)
	}
	digits := word
	if len(word) == len("2006-01") && word[4] == '-' {
		digits = word[:4] + word[5:]
	}
	value, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || len(digits) != len("200601") || value < 100001 || value%100 < 1 || value%100 > 12 {
		return fmt.Errorf("%q is not yyyyMM or yyyy-MM", word)
	}
	*m = month(value)
	return nil
}

// MarshalJSON writes "202608".
func (m month) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%06d"`, int32(m)), nil }

// Parse checks a request and brings it into its normal form.
func (p *Projection) Parse(raw []byte, trigger string) (refresh.Request, error) {
	var in request
	if err := decode(raw, &in); err != nil {
		return refresh.Request{}, err
	}
	in.Trigger = cmp.Or(trigger, in.Trigger)
	wrong := fault.New(fault.InvalidArgument, "the request can't be a refresh of bills")
	in.normalise()
	in.validate(wrong)
	if len(wrong.Fields) > 0 {
		return refresh.Request{}, wrong
	}
	computed, err := in.businessKey()
	if err != nil {
		return refresh.Request{}, err
	}
	out := refresh.Request{
		Mode: in.Mode, BusinessKey: computed, SourceEventID: in.SourceEventID, Trigger: in.Trigger, Replace: in.Replace,
	}
	if in.BusinessKey == out.BusinessKey {
		in.BusinessKey = ""
	}
	if in.BusinessKey != "" {
		if in.Mode == refresh.ReviewCreate {
			return refresh.Request{}, wrong.WithField("business_key", "is empty or %q for this review", out.BusinessKey)
		}
		out.BusinessKey, out.CustomKey = in.BusinessKey, true
	}
	if out.Range, err = in.reach(); err != nil {
		return refresh.Request{}, err
	}
	if out.Payload, err = json.Marshal(in.plan); err != nil {
		return refresh.Request{}, fmt.Errorf("write the payload: %w", err)
	}
	return out, nil
}

// parse reads a payload that Parse made.
func parse(payload []byte) (*plan, error) {
	var in request
	if err := decode(payload, &in); err != nil {
		return nil, err
	}
	wrong := fault.New(fault.InvalidArgument, "the payload is no refresh of bills")
	in.normalise()
	in.validate(wrong)
	if len(wrong.Fields) > 0 {
		return nil, wrong
	}
	return &in.plan, nil
}

// decode reads JSON strictly: one object, known names in their own spelling,
// none twice, nothing behind it.
func decode(raw []byte, into *request) error {
	if err := strictNames(raw); err != nil {
		return unread(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return unread(err)
	}
	return nil
}

func unread(err error) error {
	member, says := refresh.Unread(err)
	return fault.New(fault.InvalidArgument, "the request can't be read").WithField(cmp.Or(member, "payload"), "%s", says)
}

// strictNames refuses what encoding/json lets pass: names twice, names in other
// letters, nulls, a second value.
func strictNames(raw []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if opening, err := decoder.Token(); err != nil || opening != json.Delim('{') {
		return errors.New("is not an object")
	}
	if err := strictObject(decoder); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("is one object, and something follows it")
	}
	return nil
}

func strictObject(decoder *json.Decoder) error {
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		if seen[name] || name != strings.ToLower(name) {
			return fmt.Errorf("%q stands twice or in other letters", name)
		}
		seen[name] = true
		if err := strictValue(decoder); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := decoder.Token()
	return err
}

func strictValue(decoder *json.Decoder) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case nil:
		return errors.New("is null; what is absent is left out")
	case json.Delim('{'):
		return strictObject(decoder)
	case json.Delim('['):
		for decoder.More() {
			if err := strictValue(decoder); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
		return err
	}
	return nil
}

// normalise orders the lists and fills in the mode of old payloads.
func (in *request) normalise() {
	if in.Mode == "" {
		in.Mode = refresh.ExistingOnly
	}
	in.DiffIDs, in.PaymentOrderIDs, in.CompanyIDs = distinct(in.DiffIDs), distinct(in.PaymentOrderIDs), distinct(in.CompanyIDs)
	in.PaymentOrderNos = distinct(in.PaymentOrderNos)
	slices.SortFunc(in.Scopes, func(a, b scope) int {
		return cmp.Or(cmp.Compare(a.StationID, b.StationID), cmp.Compare(a.Month, b.Month))
	})
	in.Scopes = slices.Compact(in.Scopes)
	if in.Review != nil {
		in.Review.FinalizeTime = in.Review.FinalizeTime.UTC()
	}
}

func distinct[T cmp.Ordered](list []T) []T {
	slices.Sort(list)
	return slices.Compact(list)
}

func (in *request) validate(wrong *fault.Error) {
	switch in.Mode {
	case refresh.ReviewCreate:
		in.validateReview(wrong)
	case refresh.ExistingOnly:
		in.validateSelectors(wrong)
	default:
		wrong.WithField("mode", "is %s or %s", refresh.ReviewCreate, refresh.ExistingOnly)
	}
	if len(in.Trigger) > maxText {
		wrong.WithField("trigger", "is longer than %d bytes", maxText)
	}
	if in.BusinessKey != "" && strings.TrimSpace(in.BusinessKey) == "" {
		wrong.WithField("business_key", "is blank")
	}
}

func (in *request) validateReview(wrong *fault.Error) {
	if in.Review == nil {
		wrong.WithField("review", "is needed: the review's frozen identity")
	} else {
		in.Review.validate(wrong)
	}
	for _, name := range in.given() {
		wrong.WithField(name, "can't stand beside a review")
	}
}

func (in *request) validateSelectors(wrong *fault.Error) {
	if in.Review != nil {
		wrong.WithField("review", "is for mode %s", refresh.ReviewCreate)
	}
	if len(in.given()) == 0 {
		wrong.WithField("payload", "names no scope: at least one selector is needed")
	}
	for name, count := range map[string]int{
		"diff_ids": len(in.DiffIDs), "scopes": len(in.Scopes), "payment_order_ids": len(in.PaymentOrderIDs),
		"payment_order_nos": len(in.PaymentOrderNos), "project_company_ids": len(in.CompanyIDs),
	} {
		if count > maxItems {
			wrong.WithField(name, "has more than %d items", maxItems)
		}
	}
	for _, s := range in.Scopes {
		if s.StationID == 0 || s.Month == 0 {
			wrong.WithField("scopes", "each needs station_id and bill_month")
			break
		}
	}
	for _, no := range in.PaymentOrderNos {
		if strings.TrimSpace(no) == "" || len(no) > maxText {
			wrong.WithField("payment_order_nos", "each has 1 to %d bytes", maxText)
			break
		}
	}
	if in.ImportBatchNo != "" && (strings.TrimSpace(in.ImportBatchNo) == "" || len(in.ImportBatchNo) > maxText) {
		wrong.WithField("import_batch_no", "has 1 to %d bytes", maxText)
	}
	if in.MonthFrom != 0 && in.MonthTo != 0 && in.MonthFrom > in.MonthTo {
		wrong.WithField("month_to", "is before month_from")
	}
}

// given lists the selectors that are there.
func (s *selectors) given() []string {
	var names []string
	for _, each := range []struct {
		name  string
		there bool
	}{
		{"diff_ids", len(s.DiffIDs) > 0},
		{"scopes", len(s.Scopes) > 0},
		{"payment_order_ids", len(s.PaymentOrderIDs) > 0},
		{"payment_order_nos", len(s.PaymentOrderNos) > 0},
		{"import_batch_no", s.ImportBatchNo != ""},
		{"month_from", s.MonthFrom != 0},
		{"month_to", s.MonthTo != 0},
		{"project_company_ids", len(s.CompanyIDs) > 0},
		{"partner_org_id", s.PartnerOrgID != 0},
	} {
		if each.there {
			names = append(names, each.name)
		}
	}
	return names
}

// reach is what one business key always means: everything but who asked.
func (in *request) reach() ([]byte, error) {
	meaning, err := json.Marshal(plan{Mode: in.Mode, Review: in.Review, selectors: in.selectors})
	if err != nil {
		return nil, fmt.Errorf("write the range: %w", err)
	}
	return meaning, nil
}

// businessKey holds the mode and the range; a single item's reads well, any
// other range is its JSON, which the engine stores by its hash when it is long.
func (in *request) businessKey() (string, error) {
	if in.Review != nil {
		return in.Review.businessKey(), nil
	}
	s, prefix := &in.selectors, string(in.Mode)+":"
	if len(s.given()) == 1 {
		switch {
		case len(s.Scopes) == 1:
			return fmt.Sprintf("%sSCOPE:%d:%06d", prefix, s.Scopes[0].StationID, int32(s.Scopes[0].Month)), nil
		case len(s.DiffIDs) == 1:
			return fmt.Sprintf("%sDIFF:%d", prefix, s.DiffIDs[0]), nil
		case len(s.PaymentOrderIDs) == 1:
			return fmt.Sprintf("%sORDER:%d", prefix, s.PaymentOrderIDs[0]), nil
		case s.ImportBatchNo != "":
			return prefix + "IMPORT:" + s.ImportBatchNo, nil
		}
	}
	meaning, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("write the range: %w", err)
	}
	return prefix + "RANGE:" + string(meaning), nil
}

var _ json.Marshaler = month(0)

// micros reports whether a time has no part below the database's microsecond.
func micros(t time.Time) bool { return t.Nanosecond()%int(time.Microsecond) == 0 }
