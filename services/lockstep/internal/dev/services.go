package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/internal/process"
)

// A free port may be taken before the service binds it; then all is tried again.
const startTries = 3

// services makes keys and settings and starts both services.
func (s *Stack) services(ctx context.Context, programs programs) error {
	token, hash := identity.GenerateOperatorToken()
	s.Token = token
	if err := s.keys(); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.startServices(ctx, programs, hash)
		if err == nil || try == startTries || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
		if err := s.stopServices(); err != nil {
			return err
		}
	}
}

// keys makes a key for each service that the other trusts. They end with the day.
func (s *Stack) keys() error {
	now := s.options.Now()
	var public []identity.TrustKey
	for _, app := range []string{CenterApp, ConsumerApp} {
		key, err := identity.GenerateKeyFile(s.file(app+".key.json"), identity.KeyParams{
			AppKey: app, KeyID: app + "-1", Use: []identity.Use{identity.UseRequest, identity.UseStatement, identity.UseCursor},
			NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, 30),
		})
		if err != nil {
			return err
		}
		public = append(public, key.Public())
	}
	return identity.WriteTrust(s.file("trust.json"), public...)
}

func (s *Stack) file(name string) string { return filepath.Join(s.Dir, name) }

// startServices starts the consumer on any port, then the center, which has to
// know the consumer's; the center's own, which the consumer has to know, is
// chosen beforehand.
func (s *Stack) startServices(ctx context.Context, programs programs, tokenHash string) error {
	centerAddress, err := freeAddress(ctx)
	if err != nil {
		return fmt.Errorf("choose a port: %w", err)
	}
	s.CenterConfig, s.ConsumerConfig = s.file("center.yaml"), s.file("consumer.yaml")
	s.undo = append(s.undo, s.stopServices)
	if err := write(s.ConsumerConfig, s.consumerSettings(centerAddress, tokenHash)); err != nil {
		return err
	}
	if s.consumer, err = s.launch("consumer", programs.consumer, s.ConsumerConfig); err != nil {
		return err
	}
	if s.ConsumerAt, err = s.consumer.AwaitReady(ctx, s.file("consumer.ready.json")); err != nil {
		return err
	}
	if err := write(s.CenterConfig, s.centerSettings(centerAddress, s.ConsumerAt.GRPC, tokenHash)); err != nil {
		return err
	}
	if s.center, err = s.launch("center", programs.center, s.CenterConfig); err != nil {
		return err
	}
	if s.CenterAt, err = s.center.AwaitReady(ctx, s.file("center.ready.json")); err != nil {
		return err
	}
	s.options.Note("services: center %s (process %d), consumer %s (process %d)", s.CenterAt.GRPC, s.center.Pid(), s.ConsumerAt.GRPC, s.consumer.Pid())
	return nil
}

func (s *Stack) stopServices() error {
	var errs []error
	for _, p := range []*process.Process{s.center, s.consumer} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	for _, name := range []string{"center.ready.json", "consumer.ready.json"} {
		if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	s.center, s.consumer = nil, nil
	return errors.Join(errs...)
}

func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func portOf(address string) (uint32, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return uint32(port), err
}

// write keeps settings as a file that a person can read and learn from.
func write(path string, settings any) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}
