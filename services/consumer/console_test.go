package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lockstep.dev/services/consumer/internal/centertest"
)

// page asks for a page of the console, as a signed-in browser does.
func (s *service) page(path string) (code int, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.http+"/console/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Cookie", "__Host-lockstep-consumer-"+centertest.Consumer+"-session="+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestConsoleOfAConsumerWithNothing: no work, no projection to refresh, and
// every page says so.
func TestConsoleOfAConsumerWithNothing(t *testing.T) {
	s := setup(t)
	s.start()
	for path, test := range map[string]struct {
		code int
		want string
	}{
		"":                    {200, "Nothing had work yet."},
		"work":                {200, "No task was accepted yet."},
		"work?state=RUNNING":  {200, "No work fits the filter."},
		"work?state=SLEEPING": {422, "INVALID_ARGUMENT"},
		"work?tenant=seven":   {422, "is a whole number"},
		"work/nonsense":       {422, "INVALID_ARGUMENT"},
		"work/" + strings.Repeat("0", 31) + "1/pause": {404, "TASK_NOT_FOUND"},
		"quarantine":                         {200, "No collection had work yet."},
		"quarantine?tenant=7":                {200, "Nothing is quarantined here."},
		"quarantine/retry":                   {422, "no record is named"},
		"retired?tenant=7&collection=form-1": {200, "Nothing is retired here."},
		"record":                             {200, "Name a tenant, a collection and a key."},
		"record?tenant=7&collection=form-1&key=" + strings.Repeat("a", 32): {200, "This side has no row of this key."},
		"refresh":                            {200, "Nothing was asked to be refreshed yet."},
		"refresh/" + strings.Repeat("a", 32): {404, "TASK_NOT_FOUND"},
		"bills":                              {200, "this service keeps no bills"},
		"bills/csv":                          {404, "this service keeps no bills"},
		"stations":                           {200, "this service keeps no bills"},
		"scores?candidate=1&period=202607":   {200, "this service keeps no scores"},
		"scores?candidate=1&period=1" + "0000000000": {422, "is yyyyMM"},
		"audit":   {200, "keys.use"},
		"nowhere": {404, "there is no such page"},
	} {
		code, body := s.page(path)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d, want %d with %q\n%s", path, code, test.code, test.want, body)
		}
		if strings.Contains(body, s.token) {
			t.Errorf("%s shows the token", path)
		}
	}
}
