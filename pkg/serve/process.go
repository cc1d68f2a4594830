package serve

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log is what the settings say about logging.
type Log struct {
	Level    string `koanf:"level"`    // debug, info, warn, error; info by default
	Encoding string `koanf:"encoding"` // json by default, or console
}

// Logger logs to standard error. Callers log no body, key material or token.
func Logger(level, encoding string) (*zap.Logger, error) {
	settings := zap.NewProductionConfig()
	settings.Sampling = nil // what is logged is wanted
	settings.DisableStacktrace = true
	settings.EncoderConfig.TimeKey = "at"
	settings.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	settings.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if level != "" {
		parsed, err := zap.ParseAtomicLevel(level)
		if err != nil {
			return nil, fmt.Errorf("log.level: %w", err)
		}
		settings.Level = parsed
	}
	if encoding != "" {
		settings.Encoding = encoding
	}
	log, err := settings.Build()
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return log, nil
}

// WithSignals returns a context that ends with the first SIGINT or SIGTERM. A
// second one ends the process at once.
func WithSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		received, ok := (<-signals).(syscall.Signal)
		if !ok {
			received = syscall.SIGTERM
		}
		os.Exit(128 + int(received)) // as a shell tells an end by signal
	}()
	return ctx, cancel
}
