package prep

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// generator makes documents that are mostly requests, and spoils them.
type generator struct{ random *rand.Rand }

func (g generator) one(of ...string) string { return of[g.random.IntN(len(of))] }

func (g generator) chance(percent int) bool { return g.random.IntN(100) < percent }

func (g generator) space() string {
	if g.chance(70) {
		return ""
	}
	return g.one(" ", "\n", "\t", "\r\n", "  ")
}

// request is a document whose fields are mostly of the right type.
func (g generator) request() []byte {
	var members []string
	member := func(name, value string) {
		if g.chance(3) {
			value = g.value(1)
		}
		if g.chance(99) {
			members = append(members, g.key(name)+g.space()+":"+g.space()+value)
		}
	}
	for _, name := range []string{"image_data", "slide_name", "model_name", "mode"} {
		member(name, g.text())
	}
	for _, name := range []string{"x", "y", "width", "height", "patch_idx"} {
		member(name, g.one("7", "-0", "7.0", "1e3", "0.7e1", "-9223372036854775808", "9223372036854775807", g.number()))
	}
	for _, name := range []string{"tissue_ratio", "resolution"} {
		member(name, g.one("0.5", "null", "1e308", "-2", g.number()))
	}
	member("bulk_rna", g.one("null", "[]", "[1, -1,0.5]", g.value(2)))
	for range g.random.IntN(3) {
		member(g.one("unknown", "X", "Mode", "", "x", "y", "mode"), g.value(0))
	}
	g.random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	if g.chance(2) {
		members = append(members, g.key("deep")+":"+strings.Repeat("[", 125)+g.one("", "[[", "[[[", "[[[[")+"0")
		members[len(members)-1] += strings.Repeat("]", strings.Count(members[len(members)-1], "["))
	}
	return []byte(g.space() + "{" + g.space() + strings.Join(members, g.space()+","+g.space()) + g.space() + "}" + g.space())
}

// key is a field's name in quotes, some characters of it as escapes.
func (g generator) key(name string) string {
	if g.chance(80) {
		return `"` + name + `"`
	}
	var s strings.Builder
	for _, c := range []byte(name) {
		if g.chance(30) {
			s.WriteString(`\u00` + strconv.FormatUint(uint64(c), 16))
		} else {
			s.WriteByte(c)
		}
	}
	return `"` + s.String() + `"`
}

func (g generator) text() string {
	var s strings.Builder
	for range g.random.IntN(12) {
		s.WriteString(g.one("a", "plain text", "é", "漢", "😀", "\u2028", "\ufffd", "/", "'", "{", "]", ":", ",", "\x7f",
			`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`, `\u0041`, `\u00e9`, `\u0000`, `\uffff`, `\ud83d\ude00`))
	}
	if g.chance(2) {
		s.WriteString(g.one(`\ud83d`, `\ude00`, `\ud83d\ud83d\ude00`, `\ude00\ud83d`, "\xff", "\xe6\xbc", "\xed\xa0\x80", "\xc0\xaf"))
	}
	return `"` + s.String() + `"`
}

func (g generator) number() string {
	s := g.one("", "", "-") + g.one("0", "7", "10", "123456789", strconv.FormatUint(g.random.Uint64(), 10))
	if g.chance(40) {
		s += "." + g.one("0", "00", "5", "50", "123", strconv.Itoa(g.random.IntN(1e6)))
	}
	if g.chance(40) {
		s += g.one("e", "E") + g.one("", "+", "-") + g.one("0", "00", "1", "3", "18", "19", "308", "309", "99999999999999999999")
	}
	return s
}

func (g generator) value(depth int) string {
	kind := g.random.IntN(6)
	if depth > 4 {
		kind = g.random.IntN(3)
	}
	switch kind {
	case 0:
		return g.text()
	case 1:
		return g.number()
	case 2:
		return g.one("null", "true", "false")
	default:
		var items []string
		object := g.chance(50)
		for range g.random.IntN(4) {
			item := g.value(depth + 1)
			if object {
				item = g.key(g.one("x", "mode", "a", "")) + g.space() + ":" + item
			}
			items = append(items, g.space()+item+g.space())
		}
		inside := strings.Join(items, ",")
		if object {
			return "{" + inside + "}"
		}
		return "[" + inside + "]"
	}
}

// mutate spoils a copy of the document at one to three places.
func (g generator) mutate(document []byte) []byte {
	out := append([]byte(nil), document...)
	for range 1 + g.random.IntN(3) {
		if len(out) == 0 {
			return out
		}
		at := g.random.IntN(len(out))
		end := min(len(out), at+1+g.random.IntN(4))
		switch g.random.IntN(6) {
		case 0:
			out[at] = byte(g.random.Uint32())
		case 1:
			out[at] ^= 1 << g.random.IntN(8)
		case 2:
			out = append(out[:at], out[end:]...)
		case 3:
			out = append(out[:end], append([]byte(nil), out[at:]...)...)
		case 4:
			piece := g.one(`"`, `\`, "{", "}", "[", "]", ",", ":", " ", "\n", "0", "1", ".", "e", "-", "null", "true", `""`,
				`\u`, `\ud800`, `\udc00`, "\x00", "\xef\xbb\xbf", "\xff", "é")
			out = append(out[:at], append([]byte(piece), out[at:]...)...)
		default:
			if g.chance(20) {
				out = out[:at]
			}
		}
	}
	return out
}
