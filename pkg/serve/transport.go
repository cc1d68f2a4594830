package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// What one message may hold. Answers with pages or snapshots are larger; a
// client raises its limit for those calls alone, by grpc.MaxCallRecvMsgSize.
const (
	MaxMessage         = 1 << 20
	MaxPageMessage     = 4 << 20
	MaxSnapshotMessage = 12 << 20
)

// Dial makes a connection to a peer, without connecting yet. Plaintext goes to
// loopback and Unix sockets only.
func Dial(target string, t Transport, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	protection, err := t.client(target)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(protection),
		grpc.WithDisableServiceConfig(), // the peer's DNS does not decide how we call
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}, options...)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

func (t *Transport) client(target string) (credentials.TransportCredentials, error) {
	if t.Insecure {
		if !isLocal(target) {
			return nil, errPlaintext(target)
		}
		return insecure.NewCredentials(), nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS13}
	if t.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate: %w", err)
		}
		settings.Certificates = []tls.Certificate{certificate}
	}
	if t.CAFile != "" {
		roots, err := loadCAs(t.CAFile)
		if err != nil {
			return nil, err
		}
		settings.RootCAs = roots
	}
	return credentials.NewTLS(settings), nil
}

// server returns the TLS settings of the HTTP side and of gRPC, which alone asks
// for client certificates; both are nil for plaintext.
func (t *Transport) server() (forHTTP, forGRPC *tls.Config, err error) {
	if t.Insecure {
		return nil, nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("load certificate: %w", err)
	}
	forHTTP = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}
	forGRPC = forHTTP.Clone()
	if t.ClientCAFile != "" {
		if forGRPC.ClientCAs, err = loadCAs(t.ClientCAFile); err != nil {
			return nil, nil, err
		}
		forGRPC.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return forHTTP, forGRPC, nil
}

func loadCAs(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("load CA: %s has no certificate", path)
	}
	return pool, nil
}

// innerNetwork is the network name of connections that never leave the process.
const innerNetwork = "bufconn"

// outerOnly protects connections from outside; the gateway's own connection to
// the server beside it stays in memory and needs no TLS.
type outerOnly struct {
	credentials.TransportCredentials
}

func (o outerOnly) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if conn.RemoteAddr().Network() == innerNetwork {
		return insecure.NewCredentials().ServerHandshake(conn)
	}
	return o.TransportCredentials.ServerHandshake(conn)
}

func (o outerOnly) Clone() credentials.TransportCredentials {
	return outerOnly{o.TransportCredentials.Clone()}
}

// listen opens an address. A socket file that nobody answers on is removed first.
func listen(ctx context.Context, address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixPrefix)
	if !isUnix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is no socket", path)
	}
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("somebody listens on %s", path), conn.Close())
	}
	return os.Remove(path)
}

// addressOf is how the peers name a listener's address.
func addressOf(listener net.Listener) string {
	if listener.Addr().Network() == "unix" {
		return unixPrefix + listener.Addr().String()
	}
	return listener.Addr().String()
}
