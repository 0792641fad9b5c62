package checkpoint

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// The zip format is read here rather than by archive/zip because that one, made
// for files of good will, believes the number of entries before it reads them,
// accepts entries that share their bytes and bytes of no entry, and searches for
// its end record, so that another reader may see another archive. What is read here
// has the layout that writers produce: members from the first byte to the directory,
// the directory to the end records, and the same said of a member wherever it is.
// Fields are as in PKWARE's APPNOTE 6.3.10, sections 4.3.7 to 4.5.3.
const (
	endSize, end64Size, locatorSize        = 22, 56, 20
	centralSize, localSize                 = 46, 30
	endMagic, end64Magic                   = 0x06054b50, 0x06064b50
	locatorMagic                           = 0x07064b50
	centralMagic, localMagic               = 0x02014b50, 0x04034b50
	descriptorMagic                        = 0x08074b50
	stored, deflated                uint16 = 0, 8

	// Flags of a member.
	sizesFollow = 1 << 3 // its sum and its sizes stand behind its data, too
	encrypted   = 1 | 1<<6 | 1<<13

	maxMembers   = 20000    // of an archive; a large package has some hundreds
	maxDirectory = 16 << 20 // bytes
	maxName      = 1024     // bytes of a member's name

	// A member that unpacks to more than this many times its size is no export:
	// weights are stored as they are and code does not shrink so far.
	maxRatio     = 200
	ratioMatters = 1 << 20 // bytes of a member from which on its ratio counts
)

// archive is a zip whose directory has been checked against the whole file.
type archive struct {
	file    io.ReaderAt
	members []member // without folders, in the directory's order
}

// member is one file in an archive.
type member struct {
	name   string
	method uint16
	flags  uint16
	crc    uint32
	header int64 // where its local header begins
	data   int64 // where its bytes begin
	packed int64 // how many there are
	size   int64 // how many they become
}

// openArchive reads the directory of a zip of the given size. An archive with
// which two readers could disagree, or whose sizes are not to be believed, is an
// error.
func openArchive(file io.ReaderAt, size int64) (*archive, error) {
	count, directory, at, err := readEnd(file, size)
	if err != nil {
		return nil, err
	}
	text := make([]byte, directory)
	if err := readAt(file, text, at); err != nil {
		return nil, err
	}
	a := &archive{file: file}
	names := make(map[string]bool, count)
	for range count {
		var m member
		if m, text, err = readCentral(text); err != nil {
			return nil, err
		}
		folder := strings.HasSuffix(m.name, "/")
		if err := m.check(names, folder); err != nil {
			return nil, fmt.Errorf("%s: %w", quote(m.name), err)
		}
		names[strings.TrimSuffix(m.name, "/")] = true
		if err := m.readLocal(file, at); err != nil {
			return nil, fmt.Errorf("%s: %w", quote(m.name), err)
		}
		a.members = append(a.members, m)
	}
	if len(text) > 0 {
		return nil, fmt.Errorf("its directory has %d bytes after its last entry", len(text))
	}
	if err := checkLayout(a.members, file, at); err != nil {
		return nil, err
	}
	a.members = slices.DeleteFunc(a.members, func(m member) bool { return strings.HasSuffix(m.name, "/") })
	return a, nil
}

// readEnd reads the records at the end: how many entries the directory has, its
// length in bytes and where it begins.
func readEnd(file io.ReaderAt, size int64) (count int, directory, at int64, err error) {
	fail := func(format string, args ...any) (int, int64, int64, error) {
		return 0, 0, 0, fmt.Errorf(format, args...)
	}
	tail := make([]byte, min(size, end64Size+locatorSize+endSize))
	if err := readAt(file, tail, size-int64(len(tail))); err != nil {
		return 0, 0, 0, err
	}
	if len(tail) < endSize {
		return fail("is not a zip: it has only %d bytes", size)
	}
	end := tail[len(tail)-endSize:]
	if u32(end, 0) != endMagic {
		return fail("is not a zip, or is truncated: it does not end with the end record")
	}
	if u16(end, 20) != 0 || u16(end, 4) != 0 || u16(end, 6) != 0 || u16(end, 8) != u16(end, 10) {
		return fail("its end record has a comment or tells of several disks")
	}
	entries, length, offset := uint64(u16(end, 10)), uint64(u32(end, 12)), uint64(u32(end, 16))
	before := size - endSize // where the directory must end
	if rest := tail[:len(tail)-endSize]; len(rest) >= locatorSize && u32(rest[len(rest)-locatorSize:], 0) == locatorMagic {
		locator := rest[len(rest)-locatorSize:]
		before -= locatorSize + end64Size
		if before < 0 || u64(locator, 8) != uint64(before) || u32(rest, 0) != end64Magic || u64(rest, 4) != end64Size-12 {
			return fail("its zip64 locator does not point to the zip64 end record")
		}
		if u32(locator, 4) != 0 || u32(locator, 16) > 1 || u32(rest, 16) != 0 || u32(rest, 20) != 0 || u64(rest, 24) != u64(rest, 32) {
			return fail("its zip64 end record tells of several disks")
		}
		large := [...]uint64{u64(rest, 32), u64(rest, 40), u64(rest, 48)}
		if !agree(entries, large[0], math.MaxUint16) || !agree(length, large[1], math.MaxUint32) || !agree(offset, large[2], math.MaxUint32) {
			return fail("its two end records contradict each other")
		}
		entries, length, offset = large[0], large[1], large[2]
	}
	switch {
	case entries > maxMembers:
		return fail("claims %d members; at most %d are taken", entries, maxMembers)
	case length > maxDirectory:
		return fail("claims a directory of %d bytes; at most %d are taken", length, maxDirectory)
	case entries*centralSize > length:
		return fail("claims %d members in a directory of %d bytes", entries, length)
	case offset > uint64(before) || offset+length != uint64(before):
		return fail("its directory of %d bytes at %d does not end where the end record begins, at %d", length, offset, before)
	}
	return int(entries), int64(length), int64(offset), nil
}

// agree tells whether a field that can be too small for a value holds it, or
// all ones in its stead.
func agree(small, large, ones uint64) bool { return small == large || small == ones }

// readCentral reads the first entry of the directory's text and returns the rest.
func readCentral(text []byte) (member, []byte, error) {
	if len(text) < centralSize || u32(text, 0) != centralMagic {
		return member{}, nil, errors.New("its directory is damaged: an entry is missing")
	}
	name, extra, comment := int(u16(text, 28)), int(u16(text, 30)), int(u16(text, 32))
	if len(text) < centralSize+name+extra+comment {
		return member{}, nil, errors.New("its directory is damaged: an entry is cut off")
	}
	entry, rest := text[:centralSize], text[centralSize:]
	m := member{name: string(rest[:name]), flags: u16(entry, 8), method: u16(entry, 10), crc: u32(entry, 16)}
	fields := [...]uint64{uint64(u32(entry, 24)), uint64(u32(entry, 20)), uint64(u32(entry, 42))} // in zip64's order
	if err := widen(&fields, rest[name:name+extra]); err != nil {
		return member{}, nil, fmt.Errorf("%s: %w", quote(m.name), err)
	}
	for _, v := range fields {
		if v > math.MaxInt64/4 { // so that sums of them stay positive
			return member{}, nil, fmt.Errorf("%s: claims a size or place of %d bytes", quote(m.name), v)
		}
	}
	m.size, m.packed, m.header = int64(fields[0]), int64(fields[1]), int64(fields[2])
	const link, kind = 0o120000, 0o170000
	switch {
	case m.flags&encrypted != 0:
		return member{}, nil, fmt.Errorf("%s: is encrypted", quote(m.name))
	case u16(entry, 34) != 0:
		return member{}, nil, fmt.Errorf("%s: lies on another disk", quote(m.name))
	case u32(entry, 38)>>16&kind == link:
		return member{}, nil, fmt.Errorf("%s: is a link", quote(m.name))
	}
	return m, rest[name+extra+comment:], nil
}

// widen replaces the fields that are all ones by those of the zip64 extra field.
func widen(fields *[3]uint64, extra []byte) error {
	const zip64 = 1
	var large []byte
	for len(extra) >= 4 {
		length := int(u16(extra, 2))
		if len(extra) < 4+length {
			return errors.New("its extra field is cut off")
		}
		if u16(extra, 0) == zip64 {
			if large != nil {
				return errors.New("has two zip64 fields")
			}
			large = extra[4 : 4+length]
		}
		extra = extra[4+length:]
	}
	for i := range fields {
		if fields[i] != math.MaxUint32 {
			continue
		}
		if len(large) < 8 {
			return errors.New("its zip64 field is missing or too short")
		}
		fields[i], large = u64(large, 0), large[8:]
	}
	return nil
}

// check holds a directory entry against what a member of a package can be.
func (m *member) check(names map[string]bool, folder bool) error {
	clean := strings.TrimSuffix(m.name, "/")
	switch {
	case len(m.name) > maxName || !utf8.ValidString(m.name) || strings.ContainsFunc(m.name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("is not a sensible name")
	case !fs.ValidPath(clean) || clean == "." || strings.ContainsAny(clean, `\:`):
		return errors.New("is a path that leads out of the archive or means different things to different readers")
	case names[clean]:
		return errors.New("is there twice")
	case folder && (m.size != 0 || m.packed != 0):
		return errors.New("is a folder with contents")
	case m.method != stored && m.method != deflated:
		return fmt.Errorf("is packed by method %d; stored (0) and deflate (8) are taken", m.method)
	case m.method == stored && m.size != m.packed:
		return fmt.Errorf("is stored, with %d bytes that are to become %d", m.packed, m.size)
	case m.size > ratioMatters && m.size/maxRatio > m.packed:
		return fmt.Errorf("unpacks from %d bytes to %d, more than %d times as many", m.packed, m.size, maxRatio)
	}
	return nil
}

// readLocal finds the member's bytes, which lie before limit, and refuses a
// local header that says something else than the directory.
func (m *member) readLocal(file io.ReaderAt, limit int64) error {
	if m.header+localSize+int64(len(m.name)) > limit {
		return errors.New("begins outside of the archive's data")
	}
	header := make([]byte, localSize+len(m.name))
	if err := readAt(file, header, m.header); err != nil {
		return err
	}
	const read = sizesFollow | encrypted // what changes the reading
	if u32(header, 0) != localMagic || int(u16(header, 26)) != len(m.name) || string(header[localSize:]) != m.name ||
		u16(header, 8) != m.method || u16(header, 6)&read != m.flags&read {
		return errors.New("its header is not what the directory says")
	}
	m.data = m.header + int64(len(header)) + int64(u16(header, 28))
	if m.data+m.packed > limit {
		return errors.New("ends outside of the archive's data")
	}
	fields := [3]uint64{uint64(u32(header, 22)), uint64(u32(header, 18))} // in zip64's order
	if slices.Contains(fields[:], math.MaxUint32) {
		extra := make([]byte, u16(header, 28))
		if err := readAt(file, extra, m.header+int64(len(header))); err != nil {
			return err
		}
		if err := widen(&fields, extra); err != nil {
			return err
		}
	}
	unknown := func(v uint64) bool { return v == 0 && m.flags&sizesFollow != 0 } // when it was written
	switch sum := u32(header, 14); {
	case fields[0] != uint64(m.size) && !unknown(fields[0]), fields[1] != uint64(m.packed) && !unknown(fields[1]):
		return errors.New("its header gives another size than the directory")
	case sum != m.crc && !unknown(uint64(sum)):
		return errors.New("its header gives another sum than the directory")
	}
	return nil
}

// checkLayout refuses members that share bytes, by which a small archive could unpack
// to any size, and bytes of none before end, where another reader could find a member.
func checkLayout(members []member, file io.ReaderAt, end int64) error {
	order := slices.Clone(members)
	slices.SortFunc(order, func(a, b member) int { return cmp.Compare(a.header, b.header) })
	at := int64(0)
	for i := range order {
		m := &order[i]
		switch {
		case m.header < at:
			return fmt.Errorf("%s and %s overlap", quote(order[i-1].name), quote(m.name))
		case m.header > at:
			return fmt.Errorf("%d bytes before %s belong to no member", m.header-at, quote(m.name))
		}
		length, err := m.descriptor(file, end)
		if err != nil {
			return fmt.Errorf("%s: %w", quote(m.name), err)
		}
		at = m.data + m.packed + length
	}
	if at != end {
		return fmt.Errorf("%d bytes before its directory belong to no member", end-at)
	}
	return nil
}

// descriptor is the length of what follows the member's data: its sum and its sizes,
// in 32 bits or in 64, where its flags say so.
func (m *member) descriptor(file io.ReaderAt, end int64) (length int64, err error) {
	if m.flags&sizesFollow == 0 {
		return 0, nil
	}
	const narrow, wide = 16, 24
	at := m.data + m.packed
	text := make([]byte, min(wide, end-at))
	if err := readAt(file, text, at); err != nil {
		return 0, err
	}
	if len(text) >= narrow && u32(text, 0) == descriptorMagic && u32(text, 4) == m.crc {
		switch {
		case len(text) == wide && u64(text, 8) == uint64(m.packed) && u64(text, 16) == uint64(m.size):
			return wide, nil
		case uint64(u32(text, 8)) == uint64(m.packed) && uint64(u32(text, 12)) == uint64(m.size):
			return narrow, nil
		}
	}
	return 0, errors.New("the sizes that must follow its data are missing or wrong")
}

// open returns a reader of the member's unpacked bytes.
func (a *archive) open(m *member) io.Reader {
	var r io.Reader = io.NewSectionReader(a.file, m.data, m.packed)
	if m.method == deflated {
		r = flate.NewReader(r)
	}
	return r
}

// head reads the first n bytes of a member.
func (a *archive) head(m *member, n int) ([]byte, error) {
	data := make([]byte, n)
	if _, err := io.ReadFull(a.open(m), data); err != nil {
		return nil, fmt.Errorf("is damaged or has fewer than %d bytes", n)
	}
	return data, nil
}

// readAll reads a member of at most limit bytes and checks its sum.
func (a *archive) readAll(m *member, limit int64) ([]byte, error) {
	if m.size > limit {
		return nil, fmt.Errorf("has %d bytes; at most %d are taken", m.size, limit)
	}
	var data bytes.Buffer
	n, err := io.Copy(&data, io.LimitReader(a.open(m), m.size+1))
	if err != nil || n != m.size || crc32.ChecksumIEEE(data.Bytes()) != m.crc {
		return nil, errors.New("is damaged: its bytes are not those that were packed")
	}
	return data.Bytes(), nil
}

func readAt(file io.ReaderAt, p []byte, at int64) error {
	n, err := file.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("is truncated")
	}
	return fmt.Errorf("cannot be read: %w", plain(err))
}

func u16(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
