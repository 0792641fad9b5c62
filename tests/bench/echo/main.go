// Command echo is the least that HTTP costs, for tests/bench: a server that reads the
// body of a request and answers with so many bytes.
//
//	echo BYTES
//
// It listens on a free port of 127.0.0.1 and prints its address. It ends when its
// standard input does.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"

	"github.com/valyala/fasthttp"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: echo BYTES")
	}
	size, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	answer := bytes.Repeat([]byte("0"), size)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &fasthttp.Server{
		MaxRequestBodySize: 64 << 20,
		Handler: func(c *fasthttp.RequestCtx) {
			if len(c.PostBody()) == 0 {
				c.SetStatusCode(fasthttp.StatusBadRequest)
				return
			}
			c.SetContentType("application/json")
			c.SetBody(answer)
		},
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(listener.Addr())
	log.Fatal(server.Serve(listener))
}
