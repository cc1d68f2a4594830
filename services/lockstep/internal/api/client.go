// Package api speaks the operators' REST interface of both services.
//
// It promises that a refusal keeps its code and its sentence, that every call
// has an end, and that a token goes to the configured address only: redirects
// are refused.
package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	callTimeout = 30 * time.Second
	maxAnswer   = 16 << 20 // the largest page of 500 items is far below
)

// Refused is an answer of the service that is not what was asked for.
type Refused struct {
	Status  int
	Reason  string // a stable code, "" if the answer had none
	Message string
}

func (r *Refused) Error() string {
	switch {
	case r.Reason != "" && !strings.HasPrefix(r.Message, r.Reason):
		return r.Reason + ": " + r.Message
	case r.Message != "":
		return r.Message
	}
	return fmt.Sprintf("%d %s", r.Status, http.StatusText(r.Status))
}

// ByService says whether the service understood and refused, as against broke.
func (r *Refused) ByService() bool { return r.Status >= 400 && r.Status < 500 }

// Client calls one service as one operator.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New makes a client of the service at base, such as http://127.0.0.1:8080.
func New(base, token string) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("%q is no address of a service; it looks like http://127.0.0.1:8080", base)
	}
	return &Client{base: strings.TrimSuffix(base, "/"), token: token, http: &http.Client{
		Timeout:       callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the service answered with a redirect") },
	}}, nil
}

// VerifyBy verifies the service by the certificates in a file instead of the system's.
func (c *Client) VerifyBy(caFile string) error {
	text, err := os.ReadFile(caFile) //nolint:gosec // the user names the file
	if err != nil {
		return fmt.Errorf("read the certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s holds no certificate", caFile)
	}
	c.http.Transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
	}
	return nil
}

// call sends in, nil for none, and reads the answer into out. It returns the
// answer's text too, for those who pass it on as it is.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out proto.Message) ([]byte, error) {
	var body io.Reader
	if in != nil {
		text, err := protojson.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("serialise the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Accept", "application/json")
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call the service: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to its end, or the call has failed
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, refusal(response.StatusCode, text)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return text, nil
}

// refusal reads the body of every refusal of the gateway.
func refusal(status int, text []byte) *Refused {
	var answer struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Fields  []struct {
			Name    string `json:"name"`
			Message string `json:"message"`
		} `json:"fields"`
		Error *streamError `json:"error"`
	}
	r := &Refused{Status: status}
	if err := json.Unmarshal(text, &answer); err != nil {
		const most = 300
		r.Message = strings.TrimSpace(string(text[:min(len(text), most)]))
		return r
	}
	if answer.Error != nil {
		return answer.Error.refused()
	}
	r.Reason, r.Message = answer.Code, answer.Message
	for _, field := range answer.Fields {
		r.Message += fmt.Sprintf("; %s: %s", field.Name, field.Message)
	}
	return r
}
