package hunt

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"slices"
	"strings"
)

// span is a part of a source, in bytes.
type span struct{ from, to int }

// findDecl finds a top-level declaration by its name, or returns the empty span.
func findDecl(source, name string) (span, error) {
	if !strings.Contains(source, name[strings.LastIndexByte(name, '.')+1:]) {
		return span{}, nil // much cheaper than parsing
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

// replaceCode replaces the tokens of the code before, which must occur once in the declaration, by
// the text after.
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
