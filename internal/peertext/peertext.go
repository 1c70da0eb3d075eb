// Package peertext makes text from a peer safe to show on a terminal and in a log.
package peertext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is the longest text, in bytes.
const maxText = 2000

// Clean makes text safe for a terminal: control characters other than line ends become spaces, and
// text that is too long is cut. All lines but the first are indented, so that none looks like this
// program's own.
func Clean(s string) string { return indent(Excerpt(s, maxText)) }

// Line returns at most most characters of s, made safe for a line of a table or a log.
func Line(s string, most int) string {
	runes := []rune(Excerpt(s, maxText))
	for i, r := range runes {
		if r == '\n' {
			runes[i] = ' '
		}
	}
	return string(runes[:min(len(runes), most)])
}

// indent indents all lines but the first.
func indent(s string) string {
	first, rest, found := strings.Cut(s, "\n")
	if !found {
		return s
	}
	var b strings.Builder
	b.WriteString(first)
	for line := range strings.SplitSeq(rest, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString("\n  ")
			b.WriteString(line)
		}
	}
	return b.String()
}

// Excerpt returns at most most bytes of s, made safe for a terminal.
func Excerpt(s string, most int) string {
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
