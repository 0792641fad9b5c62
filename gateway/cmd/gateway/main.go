// Command gateway serves pathology models: HTTP in front, Triton behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"histogate/gateway"
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == gateway.GuardCommand {
		fmt.Println(gateway.Guard(os.Args[2], os.Args[3:])) // the gateway reads how it ended
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "repository" {
		os.Exit(repository(context.Background(), os.Args[2:], os.LookupEnv, os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "health" {
		os.Exit(health(os.Args[2:], os.LookupEnv, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "check" {
		os.Exit(check(context.Background(), os.Args[2:], os.LookupEnv, os.Stdout, os.Stderr))
	}
	if len(os.Args) < 2 || os.Args[1] != "serve" {
		fmt.Fprintln(os.Stderr, "usage: gateway serve [flags]\n       gateway check [flags]\n       gateway health [PATH]\n       gateway repository build|check|convert [flags]\n\n"+
			"-h lists the flags of each.")
		if len(os.Args) > 1 && isHelp(os.Args[1]) {
			return
		}
		os.Exit(2)
	}
	cfg, err := gateway.ReadConfig(os.Args[2:], os.LookupEnv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "gateway: the configuration is wrong:\n%v\n", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{Level: cfg.LogLevel}))
	// The signals are not given back: a second one does nothing, however late it comes.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	if err := serve(ctx, cfg, log); err != nil {
		log.Error("cannot serve", "error", err)
		os.Exit(1)
	}
}

func isHelp(argument string) bool {
	return slices.Contains([]string{"-h", "-help", "--help"}, argument)
}

// leastMemory is the least that the collector is told to make do with.
const leastMemory = 128 << 20

func serve(ctx context.Context, cfg *gateway.Config, log *slog.Logger) error {
	// Without a limit the heap doubles before it is collected, however large it is. With
	// 1,024 tiles in flight this one saves an eighth of the memory and costs nothing
	// (BENCHMARKS.md); bodies that fill their bound are collected more often.
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(max(cfg.MaxInFlightBytes/4*3, leastMemory)))
	}
	g, err := gateway.New(ctx, cfg, log)
	if errors.Is(err, context.Canceled) {
		return nil // it was told to stop before it was made
	}
	if err != nil {
		return err
	}
	// By itself it would end the process, and every request with it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			g.Reload()
		}
	}()
	return g.Serve(ctx)
}
