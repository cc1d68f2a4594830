package pgtest

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"
)

// Cut says what becomes of a connection on which a COMMIT is on its way.
type Cut int

// What may become of it.
const (
	Carry        Cut = iota // nothing
	BeforeCommit            // cut: COMMIT never reaches the server
	AfterCommit             // cut: the server's answer never reaches the client
)

const relayBuffer = 64 << 10

// Relay carries connections to the server that listens at socket, and returns
// the loopback address at which it takes them. It asks onCommit about every
// COMMIT, possibly several times at once.
func Relay(t testing.TB, socket string, onCommit func() Cut) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket) //nolint:noctx // as long as the client's connection
			if err != nil {
				_ = client.Close() // as a server that is away would
				continue
			}
			go relay(client, server, onCommit)
		}
	}()
	return listener.Addr().String()
}

func relay(client, server net.Conn, onCommit func() Cut) {
	hangUp := func() {
		_ = client.Close()
		_ = server.Close()
	}
	defer hangUp()
	var cutAnswer atomic.Bool
	go func() {
		defer hangUp()
		buffer := make([]byte, relayBuffer)
		for {
			n, err := server.Read(buffer)
			// An answer to COMMIT says that it is done; it goes no further.
			if err != nil || cutAnswer.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, relayBuffer)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if bytes.Contains(buffer[:n], []byte("commit\x00")) {
			switch onCommit() {
			case BeforeCommit:
				return
			case AfterCommit:
				cutAnswer.Store(true)
			case Carry:
			}
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}
