package ibverbx_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The widths that lines are held to, in columns; a tab has four.
const (
	codeColumns     = 110
	commentColumns  = 100
	markdownColumns = 120
)

// Lines are no wider than a reader's screen: code, comments and documents, tests included.
func TestColumns(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var check func(lines []string, src []byte) map[int]int
		switch ext := filepath.Ext(path); {
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		case ext == ".go":
			check = wideGo
		case ext == ".md":
			check = wideMarkdown
		default:
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := strings.Split(string(src), "\n")
		for line, limit := range check(lines, src) {
			t.Errorf("%s:%d: %d columns; at most %d", path, line, columns(lines[line-1]), limit)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The checks find lines that are too wide, and exempt only what they name.
func TestColumnsAreCounted(t *testing.T) {
	word, words := strings.Repeat("x", 101), strings.Repeat("x ", 51) // 101 and 102 columns
	src := "package x\n" +
		"// " + words + "\n" + // 2: too wide
		"// " + word + "\n" +
		"//\t" + words + "\n" +
		"\t\t\tvar a = `" + words + "`\n" + // 5: too wide by its tabs
		"var b = `\n" + words + words + "\n`\n" +
		"type t struct {\n\tf int `json:\"" + words + "\"`\n}\n"
	got := wideGo(strings.Split(src, "\n"), []byte(src))
	if want := map[int]int{2: commentColumns, 5: codeColumns}; !maps.Equal(got, want) {
		t.Errorf("Go: lines %v, want %v", got, want)
	}
	text := words + words + "\n" + // 1: too wide
		"| " + words + words + "\n```\n" + words + words + "\n```\n- " + word + word + "\n" + words
	got = wideMarkdown(strings.Split(text, "\n"), nil)
	if want := map[int]int{1: markdownColumns}; !maps.Equal(got, want) {
		t.Errorf("Markdown: lines %v, want %v", got, want)
	}
}

// columns is the width of a line.
func columns(line string) int {
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

// wideGo returns the lines of a Go file that are too wide, with the limit of each. Lines within a
// raw string are exempt, struct tags too, and what cannot be broken: a comment of one word. What a
// comment shows as code or as output may be as wide as code.
func wideGo(lines []string, src []byte) map[int]int {
	limits := make([]int, len(lines)+1) // by line; 0: exempt
	for i := range limits {
		limits[i] = codeColumns
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(src))
	s.Init(file, src, func(token.Position, string) {}, scanner.ScanComments)
	output := false // within the output of an example
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		at := file.Position(pos)
		line := strings.TrimSpace(lines[at.Line-1])
		switch {
		case tok == token.STRING && lit[0] == '`':
			tag := strings.HasSuffix(line, "`") && strings.Contains(lit, `:"`)
			if n := strings.Count(lit, "\n"); n > 0 || tag {
				clear(limits[at.Line : at.Line+n+1])
			}
		case tok == token.COMMENT && strings.HasPrefix(line, lit[:2]): // nothing stands before it
			text := strings.TrimPrefix(line, "//")
			if strings.HasPrefix(text, " Output:") || strings.HasPrefix(text, " Unordered output:") {
				output = true
			}
			switch {
			case !strings.Contains(strings.TrimSpace(text), " "):
				limits[at.Line] = 0
			case !output && !strings.HasPrefix(text, "\t"):
				limits[at.Line] = commentColumns
			}
		case tok != token.SEMICOLON:
			output = false
		}
	}
	return wider(lines, limits)
}

// wideMarkdown returns the lines of a document that are too wide. Tables and code are exempt, and a
// line of one word, as a link is.
func wideMarkdown(lines []string, _ []byte) map[int]int {
	limits := make([]int, len(lines)+1)
	code := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			code = !code
		}
		if text := strings.TrimSpace(line); !code && !fence && !strings.HasPrefix(text, "|") &&
			strings.Contains(strings.TrimPrefix(text, "- "), " ") {
			limits[i+1] = markdownColumns
		}
	}
	return wider(lines, limits)
}

// wider returns the lines that exceed their limits.
func wider(lines []string, limits []int) map[int]int {
	wide := map[int]int{}
	for i, line := range lines {
		if limit := limits[i+1]; limit > 0 && columns(line) > limit {
			wide[i+1] = limit
		}
	}
	return wide
}
