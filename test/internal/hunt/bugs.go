package hunt

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Bugs is a file of deliberate bugs in one package.
type Bugs struct {
	Package string // its directory, from the root of the module
	File    string // from the directory of the test
}

// bug is a deliberate bug: changes to declarations.
type bug struct {
	Name    string
	Changes []change
}

// change replaces code that occurs once in a declaration.
type change struct {
	Dir      string // of its package, from the root of the module
	Decl     string // "Type.method", "function", or the name of a constant, variable or type
	Old, New string // code; spaces, line ends and comments do not count
}

// read reads the file.
func (b Bugs) read(t *testing.T) []bug {
	t.Helper()
	text, err := os.ReadFile(b.File)
	if err != nil {
		t.Fatal(err)
	}
	list, err := parse(b.Package, string(text))
	if err != nil {
		t.Fatalf("%s: %v", b.File, err)
	}
	return list
}

// parse reads a list of bugs in a package. Each begins with its name, and has any number of
// changes:
//
//	bug ack is lost
//	in receiver.acknowledge
//	-	r.acked = n
//	+	_ = n
//
// A declaration of another package has its directory before it: "in internal/ring FIFO.Pop".
// Lines that begin with # are comments.
func parse(pkg, text string) (list []bug, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	var c *change // the change that lines are added to
	begin := func(dir, decl string) {
		last := &list[len(list)-1]
		last.Changes = append(last.Changes, change{Dir: dir, Decl: decl})
		c = &last.Changes[len(last.Changes)-1]
	}
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case word == "bug":
			list, c = append(list, bug{Name: rest}), nil
		case word == "in" && len(list) > 0:
			dir, decl, elsewhere := strings.Cut(rest, " ")
			if !elsewhere {
				dir, decl = pkg, rest
			}
			begin(dir, decl)
		case line[0] == '-' && c != nil:
			if c.New != "" { // another change of the same declaration
				begin(c.Dir, c.Decl)
			}
			c.Old += line[1:] + "\n"
		case line[0] == '+' && c != nil:
			c.New += line[1:] + "\n"
		default:
			return nil, fmt.Errorf("line %d: want bug, in, - or +, found %q", n, line)
		}
	}
	for _, b := range list {
		if len(b.Changes) == 0 {
			return nil, fmt.Errorf("bug %q changes nothing", b.Name)
		}
	}
	return list, lines.Err()
}

// plant returns the files that the bug changes, by path, with the bug in them.
func (b *bug) plant(root string) (files map[string]string, err error) {
	files = make(map[string]string)
	for _, c := range b.Changes {
		if err := c.apply(root, files); err != nil {
			return nil, fmt.Errorf("in %s: %w", c.Decl, err)
		}
	}
	return files, nil
}

// apply makes the change in the file that has the declaration.
func (c *change) apply(root string, files map[string]string) error {
	sources, err := filepath.Glob(filepath.Join(root, c.Dir, "*.go"))
	if err != nil {
		return err
	}
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, read := files[path]
		if !read {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			source = string(text)
		}
		decl, err := findDecl(source, c.Decl)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if decl != (span{}) {
			files[path], err = replaceCode(source, decl, c.Old, c.New)
			return err
		}
	}
	return errors.New("no such declaration")
}

// span is a part of a source, in bytes.
type span struct{ from, to int }

// findDecl finds a top-level declaration by its name, or returns the empty span.
func findDecl(source, name string) (span, error) {
	if !strings.Contains(source, name[strings.LastIndexByte(name, '.')+1:]) {
		return span{}, nil // much cheaper than to parse
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", source, parser.SkipObjectResolution)
	if err != nil {
		return span{}, err
	}
	at := func(n ast.Node) span { return span{fset.Position(n.Pos()).Offset, fset.Position(n.End()).Offset} }
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if FuncName(d) == name {
				return at(d), nil
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if slices.Contains(specNames(s), name) {
					return at(s), nil
				}
			}
		}
	}
	return span{}, nil
}

// FuncName is the name of a function, or the receiver's type and the name of a method.
func FuncName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		default:
			return typ.(*ast.Ident).Name + "." + d.Name.Name
		}
	}
}

func specNames(s ast.Spec) (names []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		names = append(names, s.Name.Name)
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

// replaceCode replaces the tokens of the code before, which must occur once in the declaration,
// with the text after.
func replaceCode(source string, decl span, before, after string) (string, error) {
	all, wanted := tokens(source[decl.from:decl.to]), tokens(before)
	if len(wanted) == 0 {
		return "", fmt.Errorf("nothing to replace")
	}
	found := -1
	for i := 0; i+len(wanted) <= len(all); i++ {
		if !slices.EqualFunc(all[i:i+len(wanted)], wanted, sameText) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("occurs there more than once:\n%s", before)
		}
		found = i
	}
	if found < 0 {
		return "", fmt.Errorf("does not occur there:\n%s", before)
	}
	from, to := all[found].from, all[found+len(wanted)-1].to
	return source[:decl.from+from] + strings.TrimSuffix(after, "\n") + source[decl.from+to:], nil
}

func sameText(a, b word) bool { return a.text == b.text }

// word is a token and its place.
type word struct {
	text string
	span
}

// tokens splits code into its tokens, without comments and the semicolons that Go adds at line
// ends.
func tokens(code string) (list []word) {
	file := token.NewFileSet().AddFile("", -1, len(code))
	var s scanner.Scanner
	s.Init(file, []byte(code), func(token.Position, string) {}, 0)
	for {
		pos, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return list
		case tok == token.SEMICOLON && text == "\n":
			continue
		case text == "" || tok.IsOperator():
			text = tok.String()
		}
		from := file.Offset(pos)
		list = append(list, word{text, span{from, from + len(text)}})
	}
}
