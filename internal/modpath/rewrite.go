package main

import (
	"go/format"
	"go/scanner"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// rewriter replaces the path old by new where it means the module. The same word elsewhere is the
// name of the package, of the command, or of a directory, and stays.
type rewriter struct {
	old, new string
	// quoted is an import path in double quotes; the linter's configuration may end one with $.
	quoted *regexp.Regexp
	// imported is a line of a comment or of a raw string that is an import declaration.
	imported *regexp.Regexp
	// required is a line of a go.mod, or a go command, that names modules; word is one of its
	// words.
	required, word *regexp.Regexp
	// module is the path of a module in a line of a go.mod.
	module *regexp.Regexp
}

func newRewriter(old, path string) *rewriter {
	word := regexp.QuoteMeta(old)
	return &rewriter{
		old: old, new: path,
		quoted: regexp.MustCompile(`"` + word + `([/$][^"\s]*)?"`),
		imported: regexp.MustCompile("(?m)^([/\\s`]*" + `(?:import\s+)?(?:[\w.]+\s+)?)"` + word +
			`(/[^"\s]*)?"(\s*)$`),
		required: regexp.MustCompile(`(?m)^(require|replace|module|go (get|mod|install|doc)) .*$`),
		word:     regexp.MustCompile(`(^|[\s=])` + word + `([@=/\s.]|$)`),
		module:   regexp.MustCompile(`(?m)^((?:module|require|replace) |\t)` + word + `([/ ]|$)`),
	}
}

// source rewrites the imports of a Go file, and those that its comments and raw strings show.
func (w *rewriter) source(src []byte) []byte {
	var s scanner.Scanner
	files := token.NewFileSet()
	f := files.AddFile("", files.Base(), len(src))
	s.Init(f, src, func(token.Position, string) {}, scanner.ScanComments) // testdata may be no Go
	var out []byte
	done := 0 // src is copied to out up to here
	inImport, inList := false, false
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		text := lit
		switch {
		case tok == token.IMPORT:
			inImport = true
		case tok == token.LPAREN && inImport:
			inList = true
		case tok == token.RPAREN, tok == token.SEMICOLON && !inList:
			inImport, inList = false, false
		case tok == token.STRING && inImport:
			text = w.importPath(lit)
		case tok == token.COMMENT, tok == token.STRING && lit[0] == '`':
			text = w.imported.ReplaceAllString(lit, "${1}\""+w.new+"${2}\"${3}")
		}
		if text != lit {
			at := f.Offset(pos)
			out = append(append(out, src[done:at]...), text...)
			done = at + len(lit)
		}
	}
	if done == 0 {
		return src
	}
	out = append(out, src[done:]...)
	if sorted, err := format.Source(out); err == nil { // imports are sorted by path
		return sorted
	}
	return out
}

// importPath rewrites an import path, quotes included.
func (w *rewriter) importPath(lit string) string {
	path, err := strconv.Unquote(lit)
	if err != nil {
		return lit
	}
	if rest, ok := strings.CutPrefix(path, w.old); ok && (rest == "" || rest[0] == '/') {
		return strconv.Quote(w.new + rest)
	}
	return lit
}

// document rewrites, in the code blocks of a Markdown file, quoted import paths, lines of go.mod,
// and go commands.
func (w *rewriter) document(src []byte) []byte {
	parts := regexp.MustCompile("(?m)^```").Split(string(src), -1)
	for i := 1; i < len(parts); i += 2 { // every other part is code
		parts[i] = string(w.config([]byte(parts[i])))
		parts[i] = w.required.ReplaceAllStringFunc(parts[i], func(line string) string {
			return w.word.ReplaceAllString(line, "${1}"+w.new+"${2}")
		})
	}
	return []byte(strings.Join(parts, "```"))
}

// gomod rewrites the paths of modules in a go.mod.
func (w *rewriter) gomod(src []byte) []byte {
	return w.module.ReplaceAll(src, []byte("${1}"+w.new+"${2}"))
}

// config rewrites quoted import paths, as the linter's configuration has them.
func (w *rewriter) config(src []byte) []byte {
	return w.quoted.ReplaceAll(src, []byte(`"`+w.new+`$1"`))
}
