package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"histogate/gateway/checkpoint/checkpointtest"
)

// raw is a zip written byte by byte, so that each field can lie.
type raw struct {
	entries []entry
	end     [9]uint64 // differences that are added to fields of the end records; see bytes
	zip64   bool
	behind  string
}

type entry struct {
	name, localName string
	data            string
	method, flags   uint16
	size, packed    uint64 // when not 0, in the directory
	localSize       uint32 // when not 0, in the local header
	localSum        uint32 // added to the sum there
	localFlags      uint16 // added to the flags there
	localExtra      string
	offset          int64  // added to the place
	extra           string // of the directory
	before, behind  string // bytes around the member
	mode            uint32
}

func (r raw) bytes() []byte {
	var out, directory bytes.Buffer
	put := func(w *bytes.Buffer, fields ...any) {
		for _, f := range fields {
			if err := binary.Write(w, binary.LittleEndian, f); err != nil {
				panic(err)
			}
		}
	}
	for _, e := range r.entries {
		local := e.name
		if e.localName != "" {
			local = e.localName
		}
		size, packed, localSize := uint64(len(e.data)), uint64(len(e.data)), uint32(len(e.data))
		if e.size != 0 {
			size = e.size
		}
		if e.packed != 0 {
			packed = e.packed
		}
		if e.localSize != 0 {
			localSize = e.localSize
		}
		out.WriteString(e.before)
		at := int64(out.Len())
		sum := crc32.ChecksumIEEE([]byte(e.data))
		put(&out, uint32(localMagic), uint16(20), e.flags+e.localFlags, e.method, uint32(0), sum+e.localSum, localSize, localSize, uint16(len(local)), uint16(len(e.localExtra)))
		out.WriteString(local + e.localExtra + e.data + e.behind)
		put(&directory, uint32(centralMagic), uint32(20), e.flags, e.method, uint32(0), sum, uint32(packed), uint32(size),
			uint16(len(e.name)), uint16(len(e.extra)), uint16(0), uint16(0), uint16(0), e.mode<<16, uint32(at+e.offset))
		directory.WriteString(e.name + e.extra)
	}
	at, length, count := uint64(out.Len()), uint64(directory.Len()), uint64(len(r.entries))
	out.Write(directory.Bytes())
	if r.zip64 {
		record := uint64(out.Len())
		put(&out, uint32(end64Magic), uint64(end64Size-12), uint16(45), uint16(45), uint32(0), uint32(r.end[0]),
			count+r.end[1], count+r.end[1], length+r.end[2], at+r.end[3])
		put(&out, uint32(locatorMagic), uint32(0), record+r.end[4], uint32(1))
	}
	put(&out, uint32(endMagic), uint16(0), uint16(r.end[8]), uint16(count+r.end[5]), uint16(count+r.end[5]), uint32(length+r.end[6]), uint32(at+r.end[7]), uint16(len(r.behind)))
	out.WriteString(r.behind)
	return out.Bytes()
}

// numbers are numbers of 32 or 64 bits as a zip has them.
func numbers(all ...any) string {
	var text []byte
	for _, n := range all {
		text, _ = binary.Append(text, binary.LittleEndian, n) // they have a size
	}
	return string(text)
}

func open(data []byte) (*archive, error) { return openArchive(bytes.NewReader(data), int64(len(data))) }

// What writers of packages produce is read: stored and deflated members, sizes
// behind the data, zip64 records with and without all ones before them.
func TestArchive(t *testing.T) {
	var streamed bytes.Buffer
	w := zip.NewWriter(&streamed)
	for _, name := range []string{"a", "b/", "b/c"} {
		member, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "/") {
			if _, err := member.Write([]byte(strings.Repeat(name, 1000))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	two := []entry{{name: "a", data: strings.Repeat("a", 1000)}, {name: "b/c", data: strings.Repeat("b/c", 1000)}}
	widened := two[1]
	widened.extra = "\x99\x99\x00\x00\x01\x00\x08\x00" + string(binary.LittleEndian.AppendUint64(nil, 3000))
	widened.size = math.MaxUint32
	widened.method, widened.packed = deflated, 3000
	sum := crc32.ChecksumIEEE([]byte(strings.Repeat("a", 1000)))
	large := two[0] // as if it might have become larger than 4 GiB, written to a pipe and to a file
	large.flags, large.localSize, large.localExtra = 1<<3, math.MaxUint32, "\x01\x00\x10\x00"+numbers(uint64(0), uint64(0))
	large.localSum, large.behind = -sum, numbers(uint32(descriptorMagic), sum, uint64(1000), uint64(1000))
	file := two[0]
	file.localSize, file.localExtra = math.MaxUint32, "FB\x02\x00ZZ\x01\x00\x10\x00"+numbers(uint64(1000), uint64(1000))
	sizedBehind := two[0]
	sizedBehind.flags, sizedBehind.behind = 1<<3, numbers(uint32(descriptorMagic), sum, uint32(1000), uint32(1000))
	for name, data := range map[string][]byte{
		"large, to a pipe":   raw{entries: []entry{large, two[1]}}.bytes(),
		"large, to a file":   raw{entries: []entry{file, two[1]}}.bytes(),
		"sizes behind, last": raw{entries: []entry{two[1], sizedBehind}}.bytes(),
		"streamed":           streamed.Bytes(),
		"stored":             raw{entries: two}.bytes(),
		"zip64":              raw{entries: two, zip64: true}.bytes(),
		"zip64 all ones":     raw{entries: two, zip64: true, end: [9]uint64{5: math.MaxUint16 - 2, 6: 0, 7: 0}}.bytes(),
	} {
		a, err := open(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(a.members) != 2 {
			t.Fatalf("%s: %d members", name, len(a.members))
		}
		for i := range a.members {
			m := &a.members[i]
			if text, err := a.readAll(m, 1<<20); err != nil || string(text) != strings.Repeat(m.name, 1000) {
				t.Errorf("%s: %s is read as %.20q, %v", name, m.name, text, err)
			}
		}
	}
	if a, err := open(raw{entries: []entry{two[0], widened}}.bytes()); err != nil || a.members[1].size != 3000 {
		t.Errorf("a size in a zip64 field: %+v, %v", a, err)
	}
}

func TestArchiveRefuses(t *testing.T) {
	good := entry{name: "a", data: "0123456789"}
	one := func(change func(*entry)) []byte {
		e := good
		change(&e)
		return raw{entries: []entry{{name: "first", data: "x"}, e}}.bytes()
	}
	zip64 := func(end [9]uint64) []byte { return raw{entries: []entry{good}, zip64: true, end: end}.bytes() }
	end := func(end [9]uint64) []byte { return raw{entries: []entry{good}, end: end}.bytes() }
	minus := func(n uint64) uint64 { return -n }
	const huge = 1 << 62
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":                {nil, "is not a zip: it has only 0 bytes"},
		"text":                 {[]byte(strings.Repeat("no zip at all ", 10)), "is not a zip, or is truncated"},
		"comment":              {raw{entries: []entry{good}, behind: "PK"}.bytes(), "is not a zip, or is truncated"},
		"several disks":        {end([9]uint64{8: 1}), "tells of several disks"},
		"prefix":               {append([]byte("#!/bin/sh\n"), raw{entries: []entry{good}}.bytes()...), "does not end where the end record begins"},
		"count above":          {raw{entries: []entry{{name: strings.Repeat("a", 60)}}, end: [9]uint64{5: 1}}.bytes(), "an entry is missing"},
		"count far above":      {end([9]uint64{5: 9}), "claims 10 members in a directory of 47 bytes"},
		"count below":          {end([9]uint64{5: minus(1)}), "has 47 bytes after its last entry"},
		"directory too large":  {end([9]uint64{6: 1 << 30}), "claims a directory of 1073741871 bytes; at most 16777216"},
		"directory elsewhere":  {end([9]uint64{7: minus(1)}), "does not end where the end record begins"},
		"directory behind":     {end([9]uint64{7: 1 << 31}), "does not end where the end record begins"},
		"zip64 count":          {zip64([9]uint64{1: huge}), "contradict each other"},
		"zip64 count alone":    {zip64([9]uint64{1: huge, 5: math.MaxUint16 - 1}), "claims 4611686018427387905 members; at most 20000"},
		"zip64 length":         {zip64([9]uint64{2: huge}), "contradict each other"},
		"zip64 place":          {zip64([9]uint64{3: minus(1)}), "contradict each other"},
		"zip64 disk":           {zip64([9]uint64{0: 1}), "several disks"},
		"zip64 record away":    {zip64([9]uint64{4: minus(1)}), "locator does not point to"},
		"zip64 record far":     {zip64([9]uint64{4: huge}), "locator does not point to"},
		"all ones":             {end([9]uint64{7: math.MaxUint32 - 41}), "does not end where"},
		"name climbs":          {one(func(e *entry) { e.name = "../a" }), `"../a": is a path that leads out`},
		"name climbs inside":   {one(func(e *entry) { e.name = "a/../../b" }), "is a path that leads out"},
		"name from the root":   {one(func(e *entry) { e.name = "/etc/x" }), "is a path that leads out"},
		"name of Windows":      {one(func(e *entry) { e.name = `..\a` }), "is a path that leads out"},
		"name of a drive":      {one(func(e *entry) { e.name = "C:a" }), "is a path that leads out"},
		"name with a line":     {one(func(e *entry) { e.name = "a\nb" }), "is not a sensible name"},
		"name not UTF-8":       {one(func(e *entry) { e.name = "a\xff" }), "is not a sensible name"},
		"name too long":        {one(func(e *entry) { e.name = strings.Repeat("a", maxName+1) }), "is not a sensible name"},
		"name empty":           {one(func(e *entry) { e.name = "" }), "is a path"},
		"twice":                {one(func(e *entry) { e.name = "first" }), `"first": is there twice`},
		"folder and file":      {one(func(e *entry) { e.name, e.data = "first/", "" }), `"first/": is there twice`},
		"folder with contents": {one(func(e *entry) { e.name = "a/" }), "is a folder with contents"},
		"link":                 {one(func(e *entry) { e.mode = 0o120777 }), "is a link"},
		"encrypted":            {one(func(e *entry) { e.flags = 1 }), "is encrypted"},
		"other method":         {one(func(e *entry) { e.method = 12 }), "is packed by method 12"},
		"stored and longer":    {one(func(e *entry) { e.size = 11 }), "is stored, with 10 bytes that are to become 11"},
		"bomb":                 {one(func(e *entry) { e.method, e.size = deflated, 1<<32-2 }), "unpacks from 10 bytes to 4294967294"},
		"size without zip64":   {one(func(e *entry) { e.size = math.MaxUint32 }), "zip64 field is missing"},
		"size in zip64": {one(func(e *entry) {
			e.size, e.extra = math.MaxUint32, "\x01\x00\x08\x00"+string(binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
		}), "claims a size or place of 18446744073709551615"},
		"two zip64 fields":  {one(func(e *entry) { e.extra = "\x01\x00\x00\x00\x01\x00\x00\x00" }), "has two zip64 fields"},
		"extra cut off":     {one(func(e *entry) { e.extra = "\x01\x00\x08\x00" }), "extra field is cut off"},
		"local name":        {one(func(e *entry) { e.localName = "b" }), "its header is not what the directory says"},
		"local size":        {one(func(e *entry) { e.localSize = 9 }), "its header gives another size"},
		"begins outside":    {one(func(e *entry) { e.offset = 1 << 20 }), "begins outside of the archive's data"},
		"begins in between": {one(func(e *entry) { e.offset = -3 }), "its header is not what the directory says"},
		"ends outside":      {one(func(e *entry) { e.size, e.packed, e.localSize = 100, 100, 100 }), "ends outside of the archive's data"},
		"local sum":         {one(func(e *entry) { e.localSum = 1 }), "its header gives another sum than the directory"},
		"local flags":       {one(func(e *entry) { e.localFlags = 1 << 3 }), "its header is not what the directory says"},
		"local encryption":  {one(func(e *entry) { e.localFlags = 1 }), "its header is not what the directory says"},
		"local ones alone":  {one(func(e *entry) { e.localSize = math.MaxUint32 }), "its zip64 field is missing or too short"},
		"local zip64 size": {one(func(e *entry) {
			e.localSize, e.localExtra = math.MaxUint32, "\x01\x00\x10\x00"+numbers(uint64(10), uint64(11))
		}), "its header gives another size"},
		"before the first": {raw{entries: []entry{{name: "a", data: "x", before: "hidden"}}}.bytes(), `6 bytes before "a" belong to no member`},
		"between two":      {one(func(e *entry) { e.before = "hidden" }), `6 bytes before "a" belong to no member`},
		"behind the last":  {one(func(e *entry) { e.behind = "hidden" }), "6 bytes before its directory belong to no member"},
		"no descriptor":    {one(func(e *entry) { e.flags = 1 << 3 }), "the sizes that must follow its data are missing or wrong"},
		"descriptor's sum": {one(func(e *entry) {
			e.flags, e.behind = 1<<3, numbers(uint32(descriptorMagic), uint32(7), uint32(10), uint32(10))
		}), "the sizes that must follow its data"},
		"descriptor's size": {one(func(e *entry) {
			e.flags, e.behind = 1<<3, numbers(uint32(descriptorMagic), crc32.ChecksumIEEE([]byte(e.data)), uint32(10), uint32(11))
		}), "the sizes that must follow its data"},
		"hidden behind a descriptor": {one(func(e *entry) {
			e.flags, e.behind = 1<<3, numbers(uint32(descriptorMagic), crc32.ChecksumIEEE([]byte(e.data)), uint32(10), uint32(10))+"hidden"
		}), "6 bytes before its directory belong to no member"},
		"overlap": {raw{entries: []entry{
			{name: "a", data: "0123456789", size: 30, packed: 30, localSize: 30}, {name: "b", data: strings.Repeat("x", 50)},
		}}.bytes(), `"a" and "b" overlap`},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if _, err := open(test.data); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not say %q", err, test.want)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// Every truncation of a package is an error, and none of a flipped byte panics.
func TestArchiveDamaged(t *testing.T) {
	data := checkpointtest.Package{SMs: []byte{90}, Metadata: metadata}.Bytes(t)
	for n := range data {
		if _, err := open(data[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are taken", n, len(data))
		}
	}
	for i := range data {
		data[i] ^= 0xff
		if a, err := open(data); err == nil {
			_, _ = inspect(a) // only a panic matters
		}
		data[i] ^= 0xff
	}
}

// A member whose bytes are not those that were packed is not taken for metadata.
func TestArchiveSum(t *testing.T) {
	a, err := open(raw{entries: []entry{{name: "a", data: "0123456789"}}}.bytes())
	if err != nil {
		t.Fatal(err)
	}
	a.members[0].crc++
	if _, err := a.readAll(&a.members[0], 100); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("%v", err)
	}
}

// Whatever is taken, archive/zip reads as the same members; whatever is read of
// it is bounded; and an error stays a line that can be logged.
func FuzzArchive(f *testing.F) {
	f.Add(checkpointtest.Package{SMs: []byte{90}, Metadata: metadata}.Bytes(f))
	f.Add(checkpointtest.Package{NewABI: true, SMs: []byte{100, 120}}.Bytes(f))
	f.Add(raw{entries: []entry{{name: "a.so", data: "x"}, {name: "b", data: "yy"}}, zip64: true}.bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := open(data)
		if err == nil {
			_, err = inspect(a)
			same(t, a, data)
		}
		if err != nil && (len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00")) {
			t.Errorf("an error that is no line: %q", err)
		}
	})
}

func same(t *testing.T, a *archive, data []byte) {
	t.Helper()
	other, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatalf("archive/zip refuses what is taken here: %v", err)
	}
	i := 0
	for _, f := range other.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		if i == len(a.members) || a.members[i].name != f.Name || uint64(a.members[i].size) != f.UncompressedSize64 {
			t.Fatalf("archive/zip reads %q of %d bytes as member %d of %d", f.Name, f.UncompressedSize64, i, len(a.members))
		}
		m := &a.members[i]
		i++
		text, err := a.readAll(m, 1<<20)
		if err != nil {
			continue // archive/zip may take a stream that goes on
		}
		r, err := f.Open()
		if err != nil {
			t.Fatalf("%q: %v", f.Name, err)
		}
		theirs, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(theirs, text) {
			t.Fatalf("%q: archive/zip reads other bytes, or none: %v", f.Name, err)
		}
	}
	if i != len(a.members) {
		t.Fatalf("archive/zip reads %d members of %d", i, len(a.members))
	}
}
