// Command consumer holds a projection of a center's records and keeps it right:
// it accepts instructions, compares, repairs, retires and reports.
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
		fmt.Fprintf(os.Stderr, "consumer: %v\n", err)
		os.Exit(1)
	}
}
