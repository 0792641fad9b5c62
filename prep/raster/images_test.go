package raster

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The manifest's files of which Decode deliberately thinks otherwise than
// Pillow, by class.
var (
	// Taken, although Pillow refuses them: it inflates the ancillary chunks
	// too, and they are too large for it.
	takenAnyway = map[string]string{
		"png-icc-huge":  "png_text_ok.png",
		"png-text-huge": "png_text_ok.png",
	}
	// Refused, although Pillow takes them: it clips their range and makes most
	// of them white.
	refusedAnyway = map[string]string{
		"png-gray16":       "16-bit grey",
		"png-gray16_adam7": "16-bit grey",
		"png-gray16-trns":  "16-bit grey",
	}
)

// image is one line of a manifest.
type image struct {
	file, class, fileSum string
	// What Pillow makes of it; size 0 if it refuses.
	width, height int
	sum           string
}

// manifest reads the files of a manifest whose class begins with one of the
// prefixes.
func manifest(t testing.TB, path string, prefixes ...string) []image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var images []image
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), "\t")
		if strings.HasPrefix(lines.Text(), "#") || len(fields) != 4 {
			continue
		}
		i := image{file: fields[0], class: fields[1], fileSum: fields[2]}
		if _, err := fmt.Sscanf(fields[3], "ok %dx%d %s", &i.width, &i.height, &i.sum); err != nil {
			i.width, i.height = 0, 0
		}
		if ext := filepath.Ext(i.file); ext != ".png" && ext != ".jpg" && ext != ".webp" {
			continue
		}
		for _, p := range prefixes {
			if strings.HasPrefix(i.class, p) {
				images = append(images, i)
				break
			}
		}
	}
	if len(images) == 0 {
		t.Fatalf("%s lists no file", path)
	}
	return images
}

func rgb(data []byte, width, height int) ([]byte, error) {
	dst := make([]byte, 3*width*height)
	err := Decode(data, width, height, Formats(), dst)
	return dst, err
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// checkImages holds Decode against Pillow's verdicts in a manifest.
func checkImages(t *testing.T, dir, list string, prefixes ...string) {
	for _, i := range manifest(t, filepath.Join(dir, list), prefixes...) {
		t.Run(i.file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(dir, i.file))
			if err != nil {
				t.Fatal(err)
			}
			if sum(data) != i.fileSum {
				t.Fatal("the file is not the one in the manifest")
			}
			width, height := i.width, i.height
			if width == 0 {
				width, height = 224, 224
			}
			got, err := rgb(data, width, height)
			switch {
			case refusedAnyway[i.class] != "":
				if i.width == 0 || err == nil || !strings.Contains(err.Error(), refusedAnyway[i.class]) {
					t.Errorf("Pillow %dx%d, Decode: %v; want it to refuse what Pillow takes", i.width, i.height, err)
				}
			case takenAnyway[i.class] != "":
				if i.width != 0 || err != nil {
					t.Fatalf("Pillow %dx%d, Decode: %v; want it to take what Pillow refuses", i.width, i.height, err)
				}
				plain, err := os.ReadFile(filepath.Join(dir, takenAnyway[i.class]))
				if err != nil {
					t.Fatal(err)
				}
				want, err := rgb(plain, width, height)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("not the pixels of %s (%v)", takenAnyway[i.class], err)
				}
			case i.width == 0:
				if err == nil {
					t.Error("taken; Pillow refuses it")
				}
			case err != nil:
				t.Errorf("refused (%v); Pillow takes it", err)
			case sum(got) != i.sum:
				t.Error("other pixels than Pillow's")
			}
		})
	}
}

func TestImages(t *testing.T) {
	checkImages(t, "../../tests/testdata/images", "manifest-png-jpeg-webp.tsv", "")
}
