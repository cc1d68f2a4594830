package serve

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/identity"
)

// answer is what the HTTP side said.
type answer struct {
	status int
	header http.Header
	body   string
}

// call makes a request to the HTTP side.
func (w *world) call(t *testing.T, method, path, body string, header http.Header) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+addressOf(w.server.web)+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(request.Header, header)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

func bearerHeader(more ...string) http.Header {
	header := http.Header{"Authorization": {"Bearer " + annsToken}, "Content-Type": {"application/json"}}
	for i := 0; i < len(more); i += 2 {
		header[more[i]] = []string{more[i+1]}
	}
	return header
}

func TestGateway(t *testing.T) {
	const create = `{"consumer":"hall","tenantId":"7"}`
	json64 := strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65)
	w := setup(t, nil)
	for name, test := range map[string]struct {
		method, path, body string
		header             http.Header
		status             int
		code               string
	}{
		"a_read":                          {"GET", "/v1/tasks/t1", "", bearerHeader(), 200, ""},
		"a_change":                        {"POST", "/v1/tasks", create, bearerHeader(), 200, ""},
		"with_a_charset":                  {"POST", "/v1/tasks", create, bearerHeader("Content-Type", "application/json; charset=utf-8"), 200, ""},
		"without_a_token":                 {"GET", "/v1/tasks/t1", "", nil, 401, "PERMISSION_DENIED"},
		"with_an_empty_token":             {"GET", "/v1/tasks/t1", "", http.Header{"Authorization": {"Bearer "}}, 401, "PERMISSION_DENIED"},
		"with_an_unknown_token":           {"GET", "/v1/tasks/t1", "", http.Header{"Authorization": {"Bearer nobody"}}, 401, "PERMISSION_DENIED"},
		"with_a_password":                 {"GET", "/v1/tasks/t1", "", http.Header{"Authorization": {"Basic YTpi"}}, 401, "PERMISSION_DENIED"},
		"with_two_tokens":                 {"GET", "/v1/tasks/t1", "", http.Header{"Authorization": {"Bearer " + annsToken, "Bearer x"}}, 401, "PERMISSION_DENIED"},
		"with_the_token_as_metadata":      {"GET", "/v1/tasks/t1", "", http.Header{"Grpc-Metadata-Lockstep-Operator-Token": {annsToken}}, 401, "PERMISSION_DENIED"},
		"with_the_token_as_a_header":      {"GET", "/v1/tasks/t1", "", http.Header{"Lockstep-Operator-Token": {annsToken}}, 401, "PERMISSION_DENIED"},
		"with_a_timeout_of_its_own":       {"GET", "/v1/tasks/t1", "", bearerHeader("Grpc-Timeout", "1n"), 200, ""},
		"a_form":                          {"POST", "/v1/tasks", "consumer=hall", bearerHeader("Content-Type", "application/x-www-form-urlencoded"), 415, "INVALID_ARGUMENT"},
		"plain_text":                      {"POST", "/v1/tasks", create, bearerHeader("Content-Type", "text/plain"), 415, "INVALID_ARGUMENT"},
		"no_type":                         {"POST", "/v1/tasks", create, http.Header{"Authorization": {"Bearer " + annsToken}}, 415, "INVALID_ARGUMENT"},
		"a_body_of_the_largest_size":      {"POST", "/v1/tasks", create + strings.Repeat(" ", maxBody-len(create)), bearerHeader(), 200, ""},
		"a_body_that_is_too_large":        {"POST", "/v1/tasks", create + strings.Repeat(" ", maxBody-len(create)+1), bearerHeader(), 413, "RESOURCE_LIMIT"},
		"broken_JSON":                     {"POST", "/v1/tasks", `{"consumer":`, bearerHeader(), 400, "INVALID_ARGUMENT"},
		"a_key_twice":                     {"POST", "/v1/tasks", `{"consumer":"a","consumer":"b"}`, bearerHeader(), 400, "INVALID_ARGUMENT"},
		"JSON_too_deep":                   {"POST", "/v1/tasks", json64, bearerHeader(), 400, "INVALID_ARGUMENT"},
		"an_unknown_field":                {"POST", "/v1/tasks", `{"consumre":"hall"}`, bearerHeader(), 400, "INVALID_ARGUMENT"},
		"a_missing_field":                 {"POST", "/v1/tasks", `{}`, bearerHeader(), 400, "INVALID_ARGUMENT"},
		"an_unknown_route":                {"GET", "/v1/nothing", "", bearerHeader(), 404, "NOT_FOUND"},
		"a_method_the_route_has_not":      {"PATCH", "/v1/tasks/t1", "", bearerHeader(), 405, "NOT_FOUND"},
		"a_method_override":               {"POST", "/v1/tasks/t1", "", bearerHeader("X-Http-Method-Override", "GET", "Content-Type", "application/x-www-form-urlencoded"), 405, "NOT_FOUND"},
		"a_refusal":                       {"GET", "/v1/tasks/gone", "", bearerHeader(), 404, "TASK_NOT_FOUND"},
		"a_failure":                       {"GET", "/v1/tasks/broken", "", bearerHeader(), 500, "INTERNAL"},
		"something_the_service_lacks_yet": {"GET", "/v1/targets", "", bearerHeader(), 501, "NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.call(t, test.method, test.path, test.body, test.header)
			refusal := problem{}
			if err := json.Unmarshal([]byte(got.body), &refusal); err != nil {
				t.Fatalf("the body is no JSON: %s", got.body)
			}
			if got.status != test.status || string(refusal.Code) != test.code {
				t.Errorf("%d %q (%s), want %d %q", got.status, refusal.Code, got.body, test.status, test.code)
			}
			if media := got.header.Get("Content-Type"); media != jsonType {
				t.Errorf("Content-Type %q", media)
			}
			if scheme := got.header.Get("WWW-Authenticate"); (scheme != "") != (test.status == 401) {
				t.Errorf("WWW-Authenticate %q", scheme)
			}
			if strings.Contains(got.body, "secret") {
				t.Errorf("the body tells %s", got.body)
			}
		})
	}
}

func TestARefusalNamesFactsAndFields(t *testing.T) {
	w := setup(t, nil)
	if body := w.call(t, "GET", "/v1/tasks/gone", "", bearerHeader()).body; body != `{"code":"TASK_NOT_FOUND","message":"there is no task gone","meta":{"hint":"look again"}}`+"\n" {
		t.Error(body)
	}
	if body := w.call(t, "POST", "/v1/tasks", "{}", bearerHeader()).body; body != `{"code":"INVALID_ARGUMENT","message":"the request has faults","fields":[{"name":"consumer","message":"is missing"}]}`+"\n" {
		t.Error(body)
	}
}

func TestOnlyTheTokenOfAnHTTPRequestBecomesMetadata(t *testing.T) {
	w := setup(t, nil)
	got := w.call(t, "GET", "/v1/tasks/t1", "", bearerHeader(
		"Grpc-Metadata-Secret", "x", "Grpc-Metadata-Lockstep-Call-Token", "x", "X-Forwarded-For", "1.2.3.4", "X-Forwarded-Host", "evil",
		"Cookie", "a=b", "Traceparent", "x", "Grpcgateway-Authorization", "x", "Lockstep-Call-Token", "x", "User-Agent", "x", "Grpc-Timeout", "1S"))
	if got.status != http.StatusOK {
		t.Fatal(got)
	}
	received := *w.handler.received.Load()
	keys := slices.Sorted(maps.Keys(received))
	want := []string{":authority", "content-type", identity.OperatorTokenKey, "user-agent"}
	if !slices.Equal(keys, want) {
		t.Errorf("metadata %v, want %v", keys, want)
	}
	if tokens := received.Get(identity.OperatorTokenKey); !slices.Equal(tokens, []string{annsToken}) {
		t.Errorf("%d tokens", len(tokens))
	}
	if agent := received.Get("user-agent"); len(agent) != 1 || !strings.HasPrefix(agent[0], "grpc-go/") {
		t.Errorf("user agent %v", agent)
	}
}

func TestEveryHTTPAnswerHasTheSafeHeaders(t *testing.T) {
	w := setup(t, nil)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/tasks/t1", "/nothing"} {
		header := w.call(t, "GET", path, "", bearerHeader()).header
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestNoTokenIsLoggedOrCounted(t *testing.T) {
	w := setup(t, nil)
	w.call(t, "GET", "/v1/tasks/t1?token="+annsToken, "", bearerHeader())
	w.call(t, "GET", "/v1/tasks/gone", "", http.Header{"Authorization": {"Bearer wrong-token"}})
	w.call(t, "GET", "/v1/tasks/broken", "", bearerHeader())
	metrics := w.call(t, "GET", "/metrics", "", nil).body
	for _, entry := range w.logs.All() {
		text, err := json.Marshal(entry.ContextMap())
		if err != nil {
			t.Fatal(err)
		}
		metrics += entry.Message + string(text)
	}
	for _, token := range []string{annsToken, "wrong-token"} {
		if strings.Contains(metrics, token) {
			t.Errorf("%s is there", token)
		}
	}
	for _, want := range []string{`lockstep_grpc_calls_total{code="Unauthenticated"`, `reason="INTERNAL"`, `"caller":"operator:ann"`, "secret detail"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%s is not there", want)
		}
	}
}

func TestAPanicInAnHTTPHandlerIsAnswered(t *testing.T) {
	w := setup(t, nil)
	w.server.http.Handler = &outermost{log: w.server.log, now: w.server.ready.now, next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("mine") })}
	got := w.call(t, "GET", "/", "", nil)
	if got.status != http.StatusInternalServerError || w.logs.FilterMessage("request panicked").Len() != 1 {
		t.Errorf("got %v", got)
	}
}
