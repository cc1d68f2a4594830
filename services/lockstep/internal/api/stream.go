package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// WatchTask hears of a task now and after each change, until hear returns an
// error or the stream ends. A stream that ends by itself gives nil, whether or
// not the task has ended.
func (c *Client) WatchTask(ctx context.Context, id string, hear func(task *centerv1.Task, text []byte) error) error {
	err := c.lines(ctx, "/v1/tasks/"+url.PathEscape(id)+":watch", nil, "application/json", func(line []byte) error {
		var part struct {
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(line, &part); err != nil {
			return fmt.Errorf("read a line: %w", err)
		}
		if part.Error != nil {
			return refusal(http.StatusOK, line)
		}
		out := &centerv1.WatchTaskResponse{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(part.Result, out); err != nil {
			return fmt.Errorf("read a line: %w", err)
		}
		return hear(out.GetTask(), part.Result)
	})
	return wrap(err, "watch task %s", id)
}

// lines reads an answer that comes line by line, for as long as it comes.
func (c *Client) lines(ctx context.Context, path string, query url.Values, accept string, each func(line []byte) error) error {
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Accept", accept)
	patient := *c.http
	patient.Timeout = 0 // ctx ends it
	response, err := patient.Do(request)
	if err != nil {
		return fmt.Errorf("call the service: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // what is not read is not wanted
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		if err != nil {
			return fmt.Errorf("read the answer of GET %s: %w", path, err)
		}
		return refusal(response.StatusCode, text)
	}
	scanner := bufio.NewScanner(response.Body)
	scanner.Buffer(nil, maxAnswer)
	for scanner.Scan() {
		if len(scanner.Bytes()) == 0 {
			continue
		}
		if err := each(scanner.Bytes()); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read the answer of GET %s: %w", path, err)
	}
	return nil
}

// streamError is how a stream of the gateway says why it ended.
type streamError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type   string `json:"@type"`
		Reason string `json:"reason"`
	} `json:"details"`
}

// gRPC codes that are no refusal of the service's: it broke, or was away.
const (
	codeUnknown          = 2
	codeDeadlineExceeded = 4
	codeInternal         = 13
	codeUnavailable      = 14
)

func (e *streamError) refused() *Refused {
	r := &Refused{Status: http.StatusBadRequest, Message: e.Message}
	switch e.Code {
	case codeUnknown, codeDeadlineExceeded, codeInternal, codeUnavailable:
		r.Status = http.StatusServiceUnavailable
	}
	for _, detail := range e.Details {
		if strings.HasSuffix(detail.Type, "/google.rpc.ErrorInfo") {
			r.Reason = detail.Reason
		}
	}
	if r.Reason == "" && r.Status == http.StatusServiceUnavailable {
		r.Reason = "UNAVAILABLE" // the connection went, and nobody was left to say why
	}
	return r
}

// MayComeBack says whether the same call may go well a little later.
func MayComeBack(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	refused := new(Refused)
	if !errors.As(err, &refused) {
		return true // the way to the service broke
	}
	return refused.Reason == "UNAVAILABLE" || refused.Reason == "RATE_LIMITED"
}
