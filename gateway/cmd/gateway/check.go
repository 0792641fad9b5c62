package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"histogate/gateway"
)

// check tells what of the configuration, and of all that it names, "gateway serve" could
// not use. It returns the exit code: 0 when nothing is wrong, 1 when something is, 2 when
// it was called wrongly.
func check(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stdout, stderr io.Writer) int {
	cfg, err := gateway.ReadConfig(args, lookupEnv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case cfg == nil:
		fmt.Fprintf(stderr, "gateway check: it is called wrongly:\n%v\n", err)
		return 2
	}
	found := gateway.Check(ctx, cfg, err)
	for _, line := range found.Mistakes {
		fmt.Fprintln(stdout, "mistake:", line)
	}
	for _, line := range found.Warnings {
		fmt.Fprintln(stdout, "warning:", line)
	}
	fmt.Fprintf(stdout, "mistakes: %d, warnings: %d; looked at: %s\n", len(found.Mistakes), len(found.Warnings), strings.Join(found.Looked, "; "))
	if len(found.Mistakes) > 0 {
		return 1
	}
	return 0
}
