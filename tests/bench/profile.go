package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"histogate/tests/stack"
)

// profiles puts a load on a stack and has its gateway say where processor time goes and
// what is allocated: as files in a folder, and the ten greatest as text.
func profiles(ctx context.Context, repository, folder string, each time.Duration) error {
	pictures, err := tiles()
	if err != nil {
		return err
	}
	requests := embeddings(pictures)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	o := stack.Options{Repository: repository, Env: []string{"MODELS=h1", "PPROF=true"}}
	return withStack(ctx, o, func(s *stack.Stack) error {
		address := strings.TrimPrefix(s.URL, "http://")
		if err := drive(address, requests, 64, each/4).whole(); err != nil {
			return err
		}
		loaded := make(chan error, 1)
		go func() { loaded <- drive(address, requests, 64, each+time.Second).whole() }()
		err := errors.Join(
			profile(ctx, s, fmt.Sprintf("profile?seconds=%d", int(each.Seconds())), filepath.Join(folder, "cpu.pb.gz"), "cpu"),
			profile(ctx, s, "allocs", filepath.Join(folder, "allocs.pb.gz"), "alloc_space"),
		)
		return errors.Join(err, <-loaded)
	})
}

// profile fetches one profile and prints the top of it.
func profile(ctx context.Context, s *stack.Stack, name, path, sample string) error {
	admin, err := url.Parse(s.MetricsURL)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin.Host+"/debug/pprof/"+name, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", name, response.Status, content)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	top := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=10", "-sample_index="+sample, path)
	top.Stdout, top.Stderr = os.Stdout, os.Stderr
	fmt.Printf("\n%s:\n", path)
	return top.Run()
}
