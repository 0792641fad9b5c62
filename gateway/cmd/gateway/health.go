package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"histogate/gateway"
)

const (
	healthLimit = 2 * time.Second // what platforms allow a probe
	reasonBytes = 1 << 10         // of an answer that says why not
)

// health asks the gateway that serves on PORT of this machine for a path, /ping
// where none is given, so that an image needs neither shell nor curl to be
// probed. It returns the exit code: 0 on a 200, else 1, and says why on stderr.
func health(args []string, lookupEnv func(string) (string, bool), stderr io.Writer) int {
	path := "/ping"
	switch {
	case len(args) == 1 && strings.HasPrefix(args[0], "/"):
		path = args[0]
	case len(args) > 0:
		fmt.Fprintln(stderr, "usage: gateway health [PATH]\n\nPATH begins with a slash: /livez, /readyz, /ping (the default). "+
			"What else it goes by are the settings of gateway serve, from the environment.")
		if isHelp(args[0]) {
			return 0
		}
		return 1
	}
	cfg, err := gateway.ReadConfig(nil, lookupEnv, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "gateway health: the configuration is wrong:\n%v\n", err)
		return 1
	}
	if cfg.Port == 0 {
		fmt.Fprintln(stderr, "gateway health: PORT is 0, a free one that only the serving process knows; give PORT a number")
		return 1
	}
	host := cfg.Host
	if host == "" {
		host = "127.0.0.1"
	}
	client, scheme := http.Client{Timeout: healthLimit}, "http://"
	if cfg.TLSCertFile != "" {
		// The certificate is for the name that callers use, not for an address of
		// this machine, and whoever could stand between could as well be the service.
		client.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		scheme = "https://"
	}
	response, err := client.Get(scheme + net.JoinHostPort(host, strconv.Itoa(cfg.Port)) + path)
	if err != nil {
		fmt.Fprintf(stderr, "gateway health: %v\n", err)
		return 1
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		reason, err := io.ReadAll(io.LimitReader(response.Body, reasonBytes))
		if err != nil {
			reason = []byte(err.Error())
		}
		fmt.Fprintf(stderr, "gateway health: %s answers %s: %s\n", path, response.Status, reason)
		return 1
	}
	return 0
}
