package prep

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/segmentio/asm/ascii"
)

// What nearly all of a body consists of, passed over quickly: the text of the
// image and the numbers of the bulk RNA. Anything else is left to the scanner.

// plainString counts the leading bytes of a string that stand for themselves. Most
// strings are keys, which are short.
func plainString(data []byte) int {
	const short = 8
	n := plain(data[:min(short, len(data))])
	if n == short {
		if n = plainAndLong(data); n == 0 {
			n = plain(data)
		}
	}
	return n
}

// plainAndLong counts the bytes of a string up to its closing quote, if it is long
// and all of them stand for themselves; else it gives zero. Three looks with SIMD
// take a quarter of the time of [plain]'s one.
func plainAndLong(data []byte) int {
	const long = 256
	n := bytes.IndexByte(data[:min(long, len(data))], '"')
	if n >= 0 {
		return 0
	}
	if n = bytes.IndexByte(data, '"'); n < 0 || bytes.IndexByte(data[:n], '\\') >= 0 || !ascii.ValidPrint(data[:n]) {
		return 0
	}
	return n
}

// plain counts the leading bytes that stand for themselves: ASCII that is
// neither a control character, a quote nor a backslash.
func plain(data []byte) int {
	const highs = 0x8080808080808080
	rest := data
	for len(rest) >= 32 {
		marks := special(binary.LittleEndian.Uint64(rest)) | special(binary.LittleEndian.Uint64(rest[8:])) |
			special(binary.LittleEndian.Uint64(rest[16:])) | special(binary.LittleEndian.Uint64(rest[24:]))
		if marks&highs != 0 {
			break
		}
		rest = rest[32:]
	}
	for ; len(rest) >= 8; rest = rest[8:] {
		if mark := special(binary.LittleEndian.Uint64(rest)) & highs; mark != 0 {
			return len(data) - len(rest) + bits.TrailingZeros64(mark)/8
		}
	}
	for i, c := range rest {
		if c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return len(data) - len(rest) + i
		}
	}
	return len(data)
}

// special sets the high bit of the first byte of w, the lowest, that does not
// stand for itself, and of none below it.
//
// Taking one from a byte borrows into its high bit where the byte is zero, and
// 0x20 where it is below that. A byte that has the bit keeps it when one is
// taken, but for 0x80, which no byte becomes by both exclusive ors. A borrow that
// carries on can mark bytes above, but only out of a byte that is marked itself.
func special(w uint64) uint64 {
	const ones = 0x0101010101010101
	return ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones) | (w - 0x20*ones)
}

// The states of plainNumbers: what of a number has been read.
const (
	stopped = 6 * iota // at what it leaves to the scanner
	nothing
	minus
	zero
	whole
	point
	fraction
)

// numberSteps has, for each byte and in six bits for each state, the state that
// follows. A state's number is where its six bits are, so that a step is one
// shift and no step waits for the memory of another.
var numberSteps = func() (steps [256]uint64) {
	for _, step := range [...]struct {
		from uint64
		on   string
		to   uint64
	}{
		{nothing, " \t\n\r", nothing}, {nothing, "-", minus}, {nothing, "0", zero}, {nothing, "123456789", whole},
		{minus, "0", zero}, {minus, "123456789", whole},
		{zero, ".", point}, {zero, ",", nothing},
		{whole, "0123456789", whole}, {whole, ".", point}, {whole, ",", nothing},
		{point, "0123456789", fraction},
		{fraction, "0123456789", fraction}, {fraction, ",", nothing},
	} {
		for _, c := range []byte(step.on) {
			steps[c] |= step.to << step.from
		}
	}
	return steps
}()

const (
	laneBytes  = 1024          // of the data, in one lane of numbersInLanes, at the most
	lanesBytes = 4 * laneBytes // all of them
)

// plainNumbers counts the leading bytes that are numbers without an exponent, each
// with its comma behind it. What follows them is an array's next element.
func plainNumbers(data []byte) int {
	// First so much in one lane: where what is then looked at in four is looked at in
	// vain, and once more in one, that is no more than has been passed over before.
	n, all := numbersInALane(data[:min(len(data), lanesBytes)])
	if !all {
		return n
	}
	for len(data)-n >= lanesBytes {
		more := numbersInLanes(data[n:])
		if more == 0 {
			break
		}
		n += more
	}
	more, _ := numbersInALane(data[n:])
	return n + more
}

// numbersInALane is plainNumbers, byte by byte. It tells whether the data ended before
// anything else came.
func numbersInALane(data []byte) (n int, all bool) {
	state, pos := uint64(nothing), 0
	for ; len(data)-pos >= 8; pos += 8 {
		d, next := data[pos:pos+8], state
		for _, c := range d {
			next = numberSteps[c] >> (next & 63)
		}
		if next&63 == stopped {
			break
		}
		state = next
	}
	for ; pos < len(data); pos++ {
		if state = numberSteps[data[pos]] >> (state & 63); state&63 == stopped {
			break
		}
	}
	return bytes.LastIndexByte(data[:pos], ',') + 1, pos == len(data)
}

// numbersInLanes is plainNumbers for the next four lanes of the data, each of them what
// lies before the last comma within laneBytes. It gives zero where anything else is in one
// of them. In a lane a step waits for the one before it; lanes do not wait for each other,
// since each begins behind a comma.
func numbersInLanes(data []byte) (n int) {
	var lanes [lanesBytes / laneBytes][]byte
	short := laneBytes
	for i := range lanes {
		length := bytes.LastIndexByte(data[n:n+laneBytes], ',') + 1
		lanes[i] = data[n : n+length]
		n, short = n+length, min(short, length)
	}
	first, second, third, fourth := lanes[0][:short], lanes[1][:short], lanes[2][:short], lanes[3][:short]
	var a, b, c, d uint64 = nothing, nothing, nothing, nothing // their states, each in a register
	for i := range first {
		a = numberSteps[first[i]] >> (a & 63)
		b = numberSteps[second[i]] >> (b & 63)
		c = numberSteps[third[i]] >> (c & 63)
		d = numberSteps[fourth[i]] >> (d & 63)
	}
	for i, state := range [...]uint64{a, b, c, d} {
		for _, digit := range lanes[i][short:] {
			state = numberSteps[digit] >> (state & 63)
		}
		if state&63 != nothing {
			return 0
		}
	}
	return n
}
