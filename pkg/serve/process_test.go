package serve

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/zap"
)

func TestLogger(t *testing.T) {
	for name, test := range map[string]struct {
		level, encoding string
		ok, debug       bool
	}{
		"defaults": {"", "", true, false}, "console": {"debug", "console", true, true},
		"unknown_level": {"loud", "", false, false}, "unknown_encoding": {"", "xml", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := Logger(test.level, test.encoding)
			if (err == nil) != test.ok {
				t.Fatalf("got %v", err)
			}
			if err == nil && log.Core().Enabled(zap.DebugLevel) != test.debug {
				t.Errorf("debug is %v", !test.debug)
			}
		})
	}
}

const signalVariable = "LOCKSTEP_SERVE_SIGNALS"

// TestSignalled is the process that TestSignals signals: it never ends by itself.
func TestSignalled(t *testing.T) {
	if os.Getenv(signalVariable) == "" {
		return
	}
	ctx, cancel := WithSignals(context.Background())
	defer cancel()
	say := func(word string) {
		if _, err := os.Stdout.WriteString(word + "\n"); err != nil {
			t.Error(err)
		}
	}
	say("started")
	<-ctx.Done()
	say("stopping")
	select {}
}

func TestTheFirstSignalStopsInOrderAndTheSecondAtOnce(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSignalled$")
	cmd.Env = append(os.Environ(), signalVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"started", "stopping"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the process says %q, want %q", lines.Text(), want)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if !ok || exit.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("the process ended with %v", exit)
	}
}
