package raster

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var sanitizersFor = flag.Duration("sanitizers", 3*time.Second, "how long TestSanitizers feeds mutants to the decoders")

// TestSanitizers compiles the C decoders alone, with AddressSanitizer and
// UndefinedBehaviorSanitizer, and feeds them mutants: C that meets a stranger's
// bytes cannot be recovered from when it faults.
func TestSanitizers(t *testing.T) {
	driver := filepath.Join(t.TempDir(), "driver")
	flags, err := exec.Command("pkg-config", "--cflags", "--libs", "libdeflate", "zlib", "libjpeg", "libwebp", "libwebpdemux").Output()
	if err != nil {
		t.Fatalf("pkg-config does not know the libraries of the decoders; deploy/setup installs them: %v", err)
	}
	sources, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I.",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", driver, "testdata/asan/driver.c"}
	args = append(append(args, sources...), strings.Fields(string(flags))...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	var seeds []string
	for _, i := range manifest(t, "../../tests/testdata/images/manifest-png-jpeg-webp.tsv", "jpeg", "webp") {
		if i.width != 0 {
			seeds = append(seeds, "../../tests/testdata/images/"+i.file)
		}
	}
	run := exec.Command(driver, append([]string{strconv.Itoa(int(sanitizersFor.Seconds())), strconv.Itoa(os.Getpid())}, seeds...)...)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", os.Getpid(), err, out)
	}
	if runs, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || runs < 1 {
		t.Errorf("%q is no number of runs", out)
	}
	t.Logf("%s runs", strings.TrimSpace(string(out)))
}
