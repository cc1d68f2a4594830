package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"lockstep.dev/pkg/fault"
)

// A list answers one of these with a row a line, through all its pages. The two
// names mean the same.
var linesTypes = []string{"application/jsonl", "application/x-ndjson"}

// linesPage is asked for where the request names no size: every list gives as many.
const linesPage = 200

// linesWanted gives the media type of JSON Lines, "" where JSON is wanted.
func linesWanted(r *http.Request) string {
	if r.Method != http.MethodGet {
		return ""
	}
	for _, value := range strings.Split(strings.Join(r.Header.Values("Accept"), ","), ",") {
		media, _, err := mime.ParseMediaType(value)
		if err != nil {
			continue
		}
		if media == jsonType {
			return ""
		}
		for _, lines := range linesTypes {
			if media == lines {
				return lines
			}
		}
	}
	return ""
}

type linesKey struct{}

func errNoList() *fault.Error {
	return fault.New(fault.InvalidArgument, "the answer is not a list alone; ask for %s", jsonType)
}

// list is an answer in JSON Lines in the making. It holds one page.
type list struct {
	g     *gateway
	w     *patientWriter
	media string
	begun bool // the status is sent: what goes wrong now is told in the last line
}

// answer reads page after page and writes their rows. Each page is a call of
// its own: it is admitted, bounded and counted as any other.
func (l *list) answer(r *http.Request) {
	r = r.WithContext(context.WithValue(r.Context(), linesKey{}, true))
	query := r.URL.Query()
	if query.Get("page_size") == "" && query.Get("pageSize") == "" {
		query.Set("page_size", strconv.Itoa(linesPage))
	}
	for token := "first"; token != ""; {
		r.URL.RawQuery = query.Encode()
		page := l.g.page(r)
		if page.code != http.StatusOK {
			l.fail(page.code, page.body.Bytes())
			return
		}
		rows, next, err := RowsOf(page.body.Bytes())
		var refusal *fault.Error
		if err != nil {
			refusal = errNoList()
		}
		if refusal == nil && next != "" && next == query.Get("page_token") {
			refusal = fault.New(fault.Internal, "the list does not go on")
		}
		if refusal != nil {
			code := http.StatusNotAcceptable
			if refusal.Reason == fault.Internal {
				code = http.StatusInternalServerError
			}
			l.fail(code, problemOf(refusal))
			return
		}
		if err := l.write(rows); err != nil {
			panic(http.ErrAbortHandler) // nobody reads it any more
		}
		token = next
		query.Del("pageToken")
		query.Set("page_token", next)
	}
}

// write sends a page's rows at once.
func (l *list) write(rows []json.RawMessage) error {
	if !l.begun {
		l.w.Header().Set("Content-Type", l.media)
		l.w.WriteHeader(http.StatusOK)
		l.begun = true
	}
	text, err := LinesOf(rows)
	if err != nil {
		return err
	}
	if _, err := l.w.Write(text); err != nil {
		return err
	}
	return l.w.conn.Flush()
}

// fail tells what went wrong. A list that has begun ends with it as its last
// line, and then breaks off, so that no reader can take it for the end.
func (l *list) fail(code int, problem []byte) {
	if !l.begun {
		if code == http.StatusUnauthorized {
			l.w.Header().Set("WWW-Authenticate", "Bearer")
		}
		l.w.Header().Set("Content-Type", jsonType)
		l.w.WriteHeader(code)
		_, _ = l.w.Write(problem) // or nobody reads it any more
		return
	}
	line := fmt.Appendf(nil, "{\"error\":%s}\n", bytes.TrimSpace(problem))
	if _, err := l.w.Write(line); err == nil {
		_ = l.w.conn.Flush() // the next line says the same
	}
	panic(http.ErrAbortHandler)
}

// page calls for one page, again where calls come too fast.
func (g *gateway) page(r *http.Request) *recorded {
	return Patiently(r.Context(), (*recorded).tooFast, func() *recorded {
		answer := &recorded{header: http.Header{}, code: http.StatusOK}
		g.mux.ServeHTTP(answer, r.Clone(r.Context())) // what a call parses stays with it
		return answer
	})
}

// recorded is an answer in memory.
type recorded struct {
	header http.Header
	code   int
	sent   bool
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) WriteHeader(code int) {
	if !r.sent {
		r.code, r.sent = code, true
	}
}

func (r *recorded) Write(part []byte) (int, error) {
	r.sent = true
	return r.body.Write(part)
}

// tooFast says whether the call was refused for its caller's pace alone.
func (r *recorded) tooFast() bool {
	var refusal problem
	return r.code == http.StatusTooManyRequests && json.Unmarshal(r.body.Bytes(), &refusal) == nil && refusal.Code == fault.RateLimited
}

// problemOf is a refusal as a body has it.
func problemOf(refusal *fault.Error) []byte {
	text, err := json.Marshal(problem{Code: refusal.Reason, Message: refusal.Message, Meta: refusal.Meta})
	if err != nil {
		panic(errors.Join(errors.New("a problem has only plain fields"), err))
	}
	return append(text, '\n')
}
