package bills

import (
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/refresh"
)

const identityText = `"review_progress_id":1,"status_shard_id":2,"payment_order_id":3,"data_version":4,"submit_round":5,"approval_attempt":6,
	"review_plan_id":7,"finalize_time":"2026-09-01T10:00:00.123456+08:00","first_order_bill_id":100,"last_order_bill_id":200`

func TestParseGivesTheNormalForm(t *testing.T) {
	for name, c := range map[string]struct{ text, key, payload string }{
		"one scope, no mode as in old payloads": {
			`{"scopes":[{"station_id":17,"bill_month":"2026-08"}]}`, "EXISTING_ONLY:SCOPE:17:202608",
			`{"mode":"EXISTING_ONLY","scopes":[{"station_id":17,"bill_month":"202608"}]}`,
		},
		"one difference": {`{"diff_ids":["9"]}`, "EXISTING_ONLY:DIFF:9", `{"mode":"EXISTING_ONLY","diff_ids":[9]}`},
		"one order":      {`{"payment_order_ids":[9]}`, "EXISTING_ONLY:ORDER:9", `{"mode":"EXISTING_ONLY","payment_order_ids":[9]}`},
		"one batch":      {`{"import_batch_no":"B/1"}`, "EXISTING_ONLY:IMPORT:B/1", `{"mode":"EXISTING_ONLY","import_batch_no":"B/1"}`},
		"lists in any order, with repetitions": {
			`{"trigger":"import","diff_ids":[3,1,3],"payment_order_nos":["b","a","b"],"mode":"EXISTING_ONLY"}`,
			`EXISTING_ONLY:RANGE:{"diff_ids":[1,3],"payment_order_nos":["a","b"]}`,
			`{"mode":"EXISTING_ONLY","trigger":"import","diff_ids":[1,3],"payment_order_nos":["a","b"]}`,
		},
		"a wide range": {
			`{"month_from":"202601","month_to":"2026-12","project_company_ids":[2,1],"partner_org_id":5}`,
			`EXISTING_ONLY:RANGE:{"month_from":"202601","month_to":"202612","project_company_ids":[1,2],"partner_org_id":5}`,
			`{"mode":"EXISTING_ONLY","month_from":"202601","month_to":"202612","project_company_ids":[1,2],"partner_org_id":5}`,
		},
		"a key of the caller's own": {`{"diff_ids":[1],"business_key":"mine"}`, "mine", `{"mode":"EXISTING_ONLY","business_key":"mine","diff_ids":[1]}`},
		"the computed key given":    {`{"diff_ids":[1],"business_key":"EXISTING_ONLY:DIFF:1"}`, "EXISTING_ONLY:DIFF:1", `{"mode":"EXISTING_ONLY","diff_ids":[1]}`},
		"a review": {
			`{"mode":"REVIEW_CREATE","business_key":"REVIEW_CREATE:1:2:3:4:5:6:7","review":{` + identityText + `}}`, "REVIEW_CREATE:1:2:3:4:5:6:7",
			`{"mode":"REVIEW_CREATE","review":{"review_progress_id":1,"status_shard_id":2,"payment_order_id":3,"data_version":4,"submit_round":5,"approval_attempt":6,` +
				`"review_plan_id":7,"finalize_time":"2026-09-01T02:00:00.123456Z","first_order_bill_id":100,"last_order_bill_id":200}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{})
			got, err := p.Parse([]byte(c.text), "")
			if err != nil {
				t.Fatal(err)
			}
			if got.BusinessKey != c.key || string(got.Payload) != c.payload || got.CustomKey != strings.Contains(c.payload, "business_key") {
				t.Errorf("got  %s %s %v\nwant %s %s", got.BusinessKey, got.Payload, got.CustomKey, c.key, c.payload)
			}
			again, err := p.Parse(got.Payload, "")
			if err != nil || string(again.Payload) != c.payload || again.BusinessKey != c.key || string(again.Range) != string(got.Range) {
				t.Errorf("the normal form parses to %s %s (%v)", again.BusinessKey, again.Payload, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	review := func(change, to string) string {
		return `{"mode":"REVIEW_CREATE","review":{` + strings.Replace(identityText, change, to, 1) + `}}`
	}
	for name, c := range map[string]struct{ text, field string }{
		"nothing":                      {``, "payload"},
		"no object":                    {`[]`, "payload"},
		"no JSON":                      {`{"diff_ids":[1]`, "payload"},
		"no selector":                  {`{"mode":"EXISTING_ONLY"}`, "payload"},
		"empty selectors":              {`{"diff_ids":[],"scopes":[]}`, "payload"},
		"two values":                   {`{"diff_ids":[1]}{}`, "payload"},
		"a name twice":                 {`{"diff_ids":[1],"diff_ids":[2]}`, "payload"},
		"a name twice, deeper":         {`{"scopes":[{"station_id":1,"station_id":2,"bill_month":"202601"}]}`, "payload"},
		"other letters":                {`{"Diff_IDs":[1]}`, "payload"},
		"an unknown name":              {`{"diff_ids":[1],"partner":2}`, "partner"},
		"null":                         {`{"diff_ids":null,"partner_org_id":1}`, "payload"},
		"an unknown mode":              {`{"mode":"CREATE","diff_ids":[1]}`, "mode"},
		"station 0":                    {`{"scopes":[{"station_id":0,"bill_month":"202601"}]}`, "payload"},
		"a negative station":           {`{"scopes":[{"station_id":-1,"bill_month":"202601"}]}`, "payload"},
		"no station":                   {`{"scopes":[{"bill_month":"202601"}]}`, "scopes"},
		"no month":                     {`{"scopes":[{"station_id":1}]}`, "scopes"},
		"month 13":                     {`{"scopes":[{"station_id":1,"bill_month":"202613"}]}`, "payload"},
		"month 00":                     {`{"month_from":"202600"}`, "payload"},
		"a month of five digits":       {`{"month_from":"20261"}`, "payload"},
		"a month with a slash":         {`{"month_from":"2026/01"}`, "payload"},
		"a month that is a number":     {`{"month_from":202601}`, "payload"},
		"months backwards":             {`{"month_from":"202602","month_to":"202601"}`, "month_to"},
		"a fraction":                   {`{"diff_ids":[1.5]}`, "payload"},
		"an exponent":                  {`{"diff_ids":[1e3]}`, "payload"},
		"too large":                    {`{"diff_ids":[9223372036854775808]}`, "payload"},
		"a blank order number":         {`{"payment_order_nos":[" "]}`, "payment_order_nos"},
		"a blank batch":                {`{"import_batch_no":" "}`, "import_batch_no"},
		"a review without a mode":      {`{"review":{` + identityText + `}}`, "review"},
		"a review's mode, no review":   {`{"mode":"REVIEW_CREATE"}`, "review"},
		"a review and differences":     {`{"mode":"REVIEW_CREATE","diff_ids":[1],"review":{` + identityText + `}}`, "diff_ids"},
		"a review and scopes":          {`{"mode":"REVIEW_CREATE","scopes":[{"station_id":1,"bill_month":"202601"}],"review":{` + identityText + `}}`, "scopes"},
		"a review and an order number": {`{"mode":"REVIEW_CREATE","payment_order_nos":["a"],"review":{` + identityText + `}}`, "payment_order_nos"},
		"a review and a batch":         {`{"mode":"REVIEW_CREATE","import_batch_no":"a","review":{` + identityText + `}}`, "import_batch_no"},
		"a review and months":          {`{"mode":"REVIEW_CREATE","month_to":"202601","review":{` + identityText + `}}`, "month_to"},
		"a review's own key":           {`{"mode":"REVIEW_CREATE","business_key":"mine","review":{` + identityText + `}}`, "business_key"},
		"no progress":                  {review(`"review_progress_id":1,`, ``), "review.review_progress_id"},
		"no shard":                     {review(`"status_shard_id":2,`, ``), "review.status_shard_id"},
		"no order":                     {review(`"payment_order_id":3,`, ``), "review.payment_order_id"},
		"no version":                   {review(`"data_version":4,`, ``), "review.data_version"},
		"no round":                     {review(`"submit_round":5,`, ``), "review.submit_round"},
		"no attempt":                   {review(`"approval_attempt":6,`, ``), "review.approval_attempt"},
		"no plan":                      {review(`"review_plan_id":7,`, ``), "review.review_plan_id"},
		"no finalize time":             {review(`"finalize_time":"2026-09-01T10:00:00.123456+08:00",`, ``), "review.finalize_time"},
		"a nanosecond":                 {review(`.123456+`, `.123456789+`), "review.finalize_time"},
		"no first line":                {review(`"first_order_bill_id":100,`, ``), "review.first_order_bill_id"},
		"last before first":            {review(`200`, `99`), "review.last_order_bill_id"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Options{}).Parse([]byte(c.text), "")
			expectReason(t, err, fault.InvalidArgument)
			for _, field := range fault.FieldsOf(err) {
				if field.Name == c.field {
					return
				}
			}
			t.Errorf("fields %v do not name %s", fault.FieldsOf(err), c.field)
		})
	}
}

// Who asked, and by what event, is not what a key means; bounds and times are.
func TestRangeOfAReviewHoldsItsBoundsAndItsTime(t *testing.T) {
	p := New(Options{})
	parse := func(text string) refresh.Request {
		got, err := p.Parse([]byte(text), "")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	base := parse(`{"mode":"REVIEW_CREATE","review":{` + identityText + `}}`)
	same := parse(`{"mode":"REVIEW_CREATE","trigger":"x","source_event_id":"e","replace":true,"review":{` + identityText + `}}`)
	if string(same.Range) != string(base.Range) || same.SourceEventID != "e" || same.Trigger != "x" || !same.Replace {
		t.Errorf("got %+v", same)
	}
	for _, change := range [][2]string{{`200`, `201`}, {`:100`, `:99`}, {`.123456`, `.123457`}} {
		other := parse(`{"mode":"REVIEW_CREATE","review":{` + strings.Replace(identityText, change[0], change[1], 1) + `}}`)
		if other.BusinessKey != base.BusinessKey || string(other.Range) == string(base.Range) {
			t.Errorf("%v: key %s, range %s", change, other.BusinessKey, other.Range)
		}
	}
}
