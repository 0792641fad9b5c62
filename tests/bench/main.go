// Command bench measures the whole path, from socket to socket, on the real stack.
//
//	go run ./tests/bench
//
// starts one stack after the other, the product's with each way to hand tensors to
// Triton and the same two stages in Python (tests/reference/peer), with the same models
// and the same requests, and prints what they do beside each other and beside what
// nobody gets around. -record puts it into BENCHMARKS.md.
//
//	go run ./tests/bench -waits
//
// measures what the wait of Triton's batcher costs and brings, and
//
//	go run ./tests/bench -profile build/profile
//
// where the gateway's processor time and memory go at 64 in flight. Processor time is the
// measure that other work on the machine disturbs least. What is compared is compared
// within a round; each round measures everything once.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	rounds := flag.Int("rounds", 5, "how often everything is measured")
	each := flag.Duration("each", 2*time.Second, "how long a load lasts, at the least: until 4 times what is in flight is answered")
	ofWaits := flag.Bool("waits", false, "measure what the batcher's wait costs and brings")
	record := flag.Bool("record", false, "put the comparison into BENCHMARKS.md")
	folder := flag.String("profile", "", "profile the gateway into this folder")
	models := flag.String("models", "build/bench-models", "the repositories that tests/reference/bench_models.py made")
	batch := flag.Float64("device-batch-ms", 10, "what a batch costs the made-up device")
	row := flag.Float64("device-row-ms", 5, "what a tile costs it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if *ofWaits {
		return waits(ctx, *batch, *row, *rounds, *each)
	}
	repositories, err := filepath.Abs(*models)
	if err != nil {
		return err
	}
	if *folder != "" {
		return profiles(ctx, filepath.Join(repositories, "0-ms"), *folder, max(*each, 10*time.Second))
	}
	f, err := compare(ctx, repositories, *rounds, *each)
	if err != nil {
		return err
	}
	f.write(os.Stdout, *rounds)
	if *record {
		return f.record(*rounds)
	}
	return nil
}
