package peertext

import (
	"strings"
	"testing"
	"unicode"
)

func TestClean(t *testing.T) {
	long := Clean(strings.Repeat("é", maxText))
	if len(long) > maxText+3 || !strings.HasSuffix(long, "é...") {
		t.Errorf("%d bytes, the last ones %q", len(long), long[len(long)-6:])
	}
	for text, want := range map[string]string{
		"a\x00b\tc\nd\u202ee":            "a b c\n  d e",
		"a\nibverbx: all is well\n\n\nb": "a\n  ibverbx: all is well\n  b",
		strings.Repeat("\n", maxText):    "",
	} {
		got := Clean(text)
		if got != want || Clean(got) != want {
			t.Errorf("%q became %q, and then %q; want %q", text, got, Clean(got), want)
		}
	}
}

// What is too long for a line is cut, and the ends of lines are spaces.
func TestLine(t *testing.T) {
	if got := Line("eth0\nibverbx: all is\x1b[2J well"+strings.Repeat("é", 100), 30); got !=
		"eth0 ibverbx: all is [2J wellé" {
		t.Errorf("%q", got)
	}
}

// FuzzClean makes text of a peer safe for a terminal: no control characters, bounded in length,
// further lines indented. Text that is safe already stays as it is.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"out of ink", "a\x00b\tc\nd\u202ee", "a\nibverbx: all is well\n\n\nb",
		strings.Repeat("é", maxText),
		strings.Repeat("\n", maxText), "\xff\n \xc3", "\n\nx"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		if strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) ||
			len(got) > 4*maxText {
			t.Fatalf("%d bytes: %.300q", len(got), got)
		}
		_, rest, more := strings.Cut(got, "\n")
		for line := range strings.SplitSeq(rest, "\n") {
			if more && (!strings.HasPrefix(line, "  ") || strings.TrimSpace(line) == "") {
				t.Fatalf("the line %q of %.300q", line, got)
			}
		}
		if again := Clean(got); len(got) <= maxText && again != got {
			t.Fatalf("%.300q became %.300q, and then %.300q", s, got, again)
		}
		plain := len(s) <= maxText &&
			!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
		if plain && got != string([]rune(s)) {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
