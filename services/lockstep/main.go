// lockstep is the operator's command line: see `lockstep help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"lockstep.dev/services/lockstep/internal/cli"
)

func main() {
	// The first signal ends the work in order, a second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Environment{
		Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now,
	}))
}
