package raster

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// refusedOnPurpose lists the classes of files that Pillow opens and this package
// does not, each with what its refusal has to say.
var refusedOnPurpose = map[string]string{
	// Pillow clips these to 0 to 255, so most pictures would turn white unseen.
	"tiff-I;16":      "16-bit grey",
	"tiff-gray16_be": "16-bit grey",
	"tiff-I":         "32-bit",
	"tiff-u32":       "32-bit",
	"tiff-F":         "floating-point",
	// Kinds that no tile is sent in, and whose decoders differ from Pillow's.
	"tiff-1-fax": "fax compression",
	"tiff-LAB":   "CIELAB",
	// Formats that are not taken: the message lists those that are.
	"other-avif":     "a format that is taken (",
	"other-blp":      "a format that is taken (",
	"other-dds":      "a format that is taken (",
	"other-fits":     "a format that is taken (",
	"other-ico":      "a format that is taken (",
	"other-im":       "a format that is taken (",
	"other-jpeg2000": "a format that is taken (",
	"other-msp":      "a format that is taken (",
	"other-ppm":      "a format that is taken (",
	"other-qoi":      "a format that is taken (",
	"other-spider":   "a format that is taken (",
	"other-tga":      "a format that is taken (",
	"other-xbm":      "a format that is taken (",
}

func TestManifestOthers(t *testing.T) {
	made := madeFiles(t)
	manifest, err := os.Open(filepath.Join(othersDir, "manifest-others.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer manifest.Close()
	classes := make(map[string]bool)
	for lines := bufio.NewScanner(manifest); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		field := strings.Split(lines.Text(), "\t")
		name, class, sum, verdict := field[0], field[1], field[2], field[3]
		classes[class] = true
		data, found := stored(t, name)
		if !found {
			if data, err = os.ReadFile(filepath.Join(made, name)); err != nil {
				t.Error(err)
				continue
			}
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s is another file than the manifest's", name)
			continue
		}
		width, height := 224, 224
		accepted := strings.HasPrefix(verdict, "ok ")
		if accepted {
			if _, err := fmt.Sscanf(verdict, "ok %dx%d", &width, &height); err != nil {
				t.Fatal(err)
			}
		}
		rgb := make([]byte, 3*width*height)
		err := Decode(data, width, height, Formats(), rgb)
		reason, refused := refusedOnPurpose[class]
		switch {
		case err == nil && refused, err == nil && !accepted:
			t.Errorf("%s (%s) is taken", name, class)
		case refused && !strings.Contains(err.Error(), reason):
			t.Errorf("%s (%s): %q does not say %q", name, class, err, reason)
		case err != nil && accepted && !refused:
			t.Errorf("%s (%s) is refused: %v", name, class, err)
		case err == nil && fmt.Sprintf("ok %dx%d %x", width, height, sha256.Sum256(rgb)) != verdict:
			t.Errorf("%s (%s) has other pixels than Pillow's", name, class)
		}
		if err != nil && !errors.As(err, new(*Error)) {
			t.Errorf("%s: %v is not an *Error", name, err)
		}
	}
	for class := range refusedOnPurpose {
		if !classes[class] {
			t.Errorf("no file of the class %s", class)
		}
	}
}

// refusedSeeds are the small files that are refused on purpose, by their names'
// beginnings.
var refusedSeeds = []string{"refused-", "xmp", "rgb555", "rle8"}

func TestSmallFilesAgainstPillow(t *testing.T) {
	oracle := startPillow(t)
	for name, data := range smallSeeds(t) {
		width, height, want := oracle.decode(t, data)
		if width == 0 {
			t.Errorf("%s: Pillow refuses the seed", name)
			continue
		}
		got := make([]byte, len(want))
		err := Decode(data, width, height, Formats(), got)
		refused := false
		for _, prefix := range refusedSeeds {
			refused = refused || strings.HasPrefix(name, prefix)
		}
		var e *Error
		switch {
		case refused && (!errors.As(err, &e) || e.Kind != Unsupported):
			t.Errorf("%s is not refused as unsupported: %v", name, err)
		case !refused && err != nil:
			t.Errorf("%s is refused: %v", name, err)
		case !refused && !bytes.Equal(got, want):
			t.Errorf("%s has other pixels than Pillow's", name)
		}
	}
}

func TestFormatNotAllowed(t *testing.T) {
	data, _ := stored(t, "gif_subframe.gif")
	err := Decode(data, 1, 1, []Format{PNG, TIFF}, make([]byte, 3))
	var e *Error
	if !errors.As(err, &e) || e.Kind != UnknownFormat || e.Format != GIF {
		t.Fatalf("%#v", err)
	}
	if want := "a GIF is not taken here; what is taken: PNG, TIFF"; e.Detail != want {
		t.Errorf("%q, want %q", e.Detail, want)
	}
}
