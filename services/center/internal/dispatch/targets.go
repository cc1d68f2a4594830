package dispatch

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"google.golang.org/grpc"

	"lockstep.dev/pkg/fault"
)

// Targets are the consumers' registered addresses and one lasting connection to
// each. No address ever comes from a request or a document.
type Targets struct {
	addresses map[string]string // by app key
	dial      func(appKey, address string) (*grpc.ClientConn, error)

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// NewTargets registers addresses; dial makes a connection that signs its calls
// for the app key.
func NewTargets(addresses map[string]string, dial func(appKey, address string) (*grpc.ClientConn, error)) *Targets {
	return &Targets{addresses: maps.Clone(addresses), dial: dial, conns: map[string]*grpc.ClientConn{}}
}

// Addresses lists what is registered, by app key.
func (t *Targets) Addresses() map[string]string { return maps.Clone(t.addresses) }

// Conn is the connection to a consumer; TARGET_NOT_REGISTERED where the
// configuration has no address for it.
func (t *Targets) Conn(appKey string) (*grpc.ClientConn, error) {
	address, ok := t.addresses[appKey]
	if !ok {
		return nil, fault.New(fault.TargetNotRegistered, "no address is registered for %s", appKey)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn := t.conns[appKey]; conn != nil {
		return conn, nil
	}
	conn, err := t.dial(appKey, address)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to %s: %w", appKey, err)
	}
	t.conns[appKey] = conn
	return conn, nil
}

// Close ends every connection.
func (t *Targets) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, conn := range t.conns {
		errs = append(errs, conn.Close())
	}
	clear(t.conns)
	return errors.Join(errs...)
}
