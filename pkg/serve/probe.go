package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	probeTimeout = 4 * time.Second // the checks themselves get two
	maxReadiness = 4 << 10         // a handful of names
)

// Probe asks the service with these settings, on this machine, whether it is
// ready, and says what fails if it is not. It is for health checks that have no
// other program, and sends nothing of a secret.
func Probe(ctx context.Context, config Config) error {
	if config.Listen.HTTP == "" {
		return errors.New("listen.http is not set: there is nothing to ask; gRPC clients may call grpc.health.v1.Health")
	}
	protection, scheme, err := config.Transport.ownCertificate()
	if err != nil {
		return err
	}
	transport := &http.Transport{
		TLSClientConfig: protection,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			network, address, err := nearest(config.Listen.HTTP)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://self/readyz", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to its end, or the probe has failed
	var answer struct {
		Ready   bool     `json:"ready"`
		Failing []string `json:"failing"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReadiness)).Decode(&answer); err != nil {
		return fmt.Errorf("ask for readiness: %s answers %s: %w", config.Listen.HTTP, response.Status, err)
	}
	if !answer.Ready {
		return fmt.Errorf("not ready: %s", strings.Join(answer.Failing, ", "))
	}
	return nil
}

// nearest is how this machine reaches an address that may mean all interfaces.
func nearest(address string) (network, dial string, err error) {
	if path, isUnix := strings.CutPrefix(address, unixPrefix); isUnix {
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", err
	}
	if ip := net.ParseIP(host); host == "" || ip.Equal(net.IPv4zero) {
		host = "127.0.0.1"
	} else if ip.Equal(net.IPv6unspecified) {
		host = "::1"
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// ownCertificate admits only a server that shows this service's own certificate,
// whatever name it is for.
func (t *Transport) ownCertificate() (settings *tls.Config, scheme string, err error) {
	if t.Insecure {
		return nil, "http", nil
	}
	own, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, "", fmt.Errorf("load certificate: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// No name to verify: the certificate itself is known.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection below compares it whole
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, own.Certificate[0]) {
				return errors.New("the server shows another certificate than cert_file")
			}
			return nil
		},
	}, "https", nil
}
