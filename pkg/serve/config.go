// Package serve runs a service: its gRPC server, its HTTP side (the operators'
// REST gateway and console, health, metrics) and its loops, from the first listen to an
// orderly end.
//
// It is safe by default: TLS 1.3 unless plaintext is switched on, and then on
// loopback only; bounds on sizes, streams, ages and deadlines; nothing of an
// HTTP request but its bearer token, path, query and JSON body reaches gRPC.
package serve

import (
	"fmt"
	"net"
	"strings"

	"lockstep.dev/pkg/config"
)

// Config is what a service's settings say about serving; embed it with
// `koanf:",squash"`.
type Config struct {
	Listen    Listen    `koanf:"listen"`
	Transport Transport `koanf:"transport"`
	// ReadyFile, if set, receives the actual addresses as JSON {"grpc", "http"}
	// once the service answers, and is removed when it stops.
	ReadyFile string `koanf:"ready_file"`
}

// Listen holds addresses: "127.0.0.1:7001", port 0 for a free one, or "unix:/path".
type Listen struct {
	// GRPC is where the peer and gRPC clients call.
	GRPC string `koanf:"grpc"`
	// HTTP is where REST, health and metrics are; "" for none.
	HTTP string `koanf:"http"`
}

// Transport says how connections are protected, those that come and those that are made.
type Transport struct {
	// Insecure allows plaintext, on loopback and Unix sockets only.
	Insecure bool `koanf:"insecure"`
	// CertFile is this service's certificate, as a server and as a client, in PEM.
	CertFile string `koanf:"cert_file"`
	// KeyFile is the certificate's private key, in PEM.
	KeyFile string `koanf:"key_file"`
	// ClientCAFile makes the gRPC server ask for and verify client certificates.
	ClientCAFile string `koanf:"client_ca_file"`
	// CAFile verifies the peers this service calls; "" is the system's roots.
	CAFile string `koanf:"ca_file"`
}

// Validate tells everything that is wrong.
func (c *Config) Validate() error {
	var problems config.Problems
	problems.Check(c.Listen.GRPC != "", "listen.grpc is missing")
	for name, address := range map[string]string{"listen.grpc": c.Listen.GRPC, "listen.http": c.Listen.HTTP} {
		if address == "" {
			continue
		}
		if !strings.HasPrefix(address, unixPrefix) {
			_, _, err := net.SplitHostPort(address)
			problems.Add(name, err)
		}
		problems.Check(!c.Transport.Insecure || isLocal(address), "%s: %s is neither loopback nor a Unix socket; plaintext is refused there", name, address)
	}
	problems.Add("transport", c.Transport.validate())
	return problems.Err()
}

func (t *Transport) validate() error {
	var problems config.Problems
	hasFiles := t.CertFile != "" || t.KeyFile != "" || t.ClientCAFile != "" || t.CAFile != ""
	problems.Check(!t.Insecure || !hasFiles, "insecure and certificates exclude each other")
	problems.Check(t.Insecure || (t.CertFile != "" && t.KeyFile != ""), "cert_file and key_file are needed; insecure: true allows plaintext on loopback")
	return problems.Err()
}

const unixPrefix = "unix:"

// isLocal reports whether only this machine can reach an address.
func isLocal(address string) bool {
	if strings.HasPrefix(address, unixPrefix) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// errPlaintext refuses to send or receive plaintext beyond this machine.
func errPlaintext(address string) error {
	return fmt.Errorf("%s is neither loopback nor a Unix socket; plaintext is refused there", address)
}
