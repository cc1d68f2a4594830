package dev

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
)

// RestartConsumer stops the consumer and starts it anew at the same address,
// with some settings otherwise than they are.
func (s *Stack) RestartConsumer(ctx context.Context, otherwise map[string]any) error {
	program, err := FindService("consumer")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(s.ConsumerConfig)
	if err != nil {
		return fmt.Errorf("read the consumer's settings: %w", err)
	}
	var now settings
	if err := yaml.Unmarshal(text, &now); err != nil {
		return fmt.Errorf("read the consumer's settings: %w", err)
	}
	now["listen"] = settings{"grpc": s.ConsumerAt.GRPC, "http": s.ConsumerAt.HTTP}
	if err := write(s.ConsumerConfig, merged(now, otherwise)); err != nil {
		return err
	}
	if err := s.consumer.Stop(); err != nil {
		return err
	}
	if err := os.Remove(s.file("consumer.ready.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.consumer, err = s.launch("consumer", program, s.ConsumerConfig); err != nil {
		return err
	}
	s.ConsumerAt, err = s.consumer.AwaitReady(ctx, s.file("consumer.ready.json"))
	return err
}
