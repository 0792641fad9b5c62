// Command bench measures the whole path, from socket to socket, on the real stack.
//
//	go run ./tests/bench -waits
//
// It is run at the root of the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
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
	rounds := flag.Int("rounds", 3, "how often everything is measured")
	each := flag.Duration("each", 2*time.Second, "how long a load lasts")
	of := flag.Bool("waits", false, "measure what the batcher's wait costs and brings")
	batch := flag.Float64("device-batch-ms", 10, "what a batch costs the made-up device")
	row := flag.Float64("device-row-ms", 5, "what a tile costs it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if !*of {
		return errors.New("nothing to measure; -h lists what there is")
	}
	return waits(ctx, device{*batch, *row}, *rounds, *each)
}
