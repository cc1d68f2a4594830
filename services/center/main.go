// Command center owns the records: it makes tasks, freezes manifests, sends
// instructions, answers for records and takes reports.
package main

import (
	"context"
	"fmt"
	"os"

	"lockstep.dev/pkg/serve"
)

func main() {
	ctx, stop := serve.WithSignals(context.Background())
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "center: %v\n", err)
		os.Exit(1)
	}
}
