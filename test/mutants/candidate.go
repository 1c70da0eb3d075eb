package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"ibverbx/test/internal/hunt"
)

// source is a file of a package.
type source struct {
	dir  string // of the package, from the root of the module; "." for the root
	path string
	text string
}

// candidate is a mutant that can be planted: one piece of a file is replaced.
type candidate struct {
	file     *source
	decl     string // where it is: "Type.method", "function", or the name of a variable
	from, to int    // what it replaces, in bytes of the file
	text     string // by what
	// planted is the text in a form that compiles although it uses less: code that never runs still
	// uses its variables and imports.
	planted string
}

// finder finds the candidates of a file.
type finder struct {
	file    *source
	fset    *token.FileSet
	decl    string
	results []ast.Expr // types of what the function under way returns
	list    []candidate
}

// candidates finds all mutants of a package.
func candidates(p *hunt.Package) (all []candidate, err error) {
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := finder{file: &source{p.Rel, path, string(text)}, fset: token.NewFileSet()}
		syntax, err := parser.ParseFile(f.fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range syntax.Decls {
			f.find(d)
		}
		all = append(all, f.list...)
	}
	return all, nil
}

func (f *finder) find(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		f.decl = hunt.FuncName(d)
		f.function(d.Type, d.Body)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				f.decl = v.Names[0].Name
				for _, value := range v.Values {
					ast.Inspect(value, f.visit)
				}
			}
		}
	}
}

func (f *finder) function(typ *ast.FuncType, body *ast.BlockStmt) {
	outer := f.results
	f.results = nil
	if typ.Results != nil {
		for _, r := range typ.Results.List {
			for range max(len(r.Names), 1) {
				f.results = append(f.results, r.Type)
			}
		}
	}
	if body != nil {
		ast.Inspect(body, f.visit)
	}
	f.results = outer
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ArrayType:
		return false // its length
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.FuncLit:
		f.function(n.Type, n.Body)
		return false
	case *ast.KeyValueExpr:
		ast.Inspect(n.Value, f.visit)
		return false
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	case *ast.IfStmt:
		f.replace(n.Cond, "true", "(true || ("+f.of(n.Cond)+"))")
		f.replace(n.Cond, "false", "(false && ("+f.of(n.Cond)+"))")
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.replace(n, f.of(n.X), "")
		}
	case *ast.BasicLit:
		f.number(n)
	case *ast.Ident:
		if other := map[string]string{"true": "false", "false": "true"}[n.Name]; other != "" {
			f.replace(n, other, "")
		}
	case *ast.ReturnStmt:
		f.errors(n)
	}
	return true
}

func (f *finder) span(n ast.Node) (from, to int) {
	return f.fset.Position(n.Pos()).Offset, f.fset.Position(n.End()).Offset
}

// of is the source of a node.
func (f *finder) of(n ast.Node) string {
	from, to := f.span(n)
	return f.file.text[from:to]
}

// replace adds a candidate. planted may be empty where the text compiles as it is.
func (f *finder) replace(n ast.Node, text, planted string) {
	if planted == "" {
		planted = text
	}
	from, to := f.span(n)
	f.list = append(f.list, candidate{f.file, f.decl, from, to, text, planted})
}

// What operators are mutated to.
var (
	operators = map[token.Token][]token.Token{
		token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
		token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
		token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
		token.LAND: {token.LOR}, token.LOR: {token.LAND},
		token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.ADD}, token.QUO: {token.MUL},
		token.REM: {token.MUL}, token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND},
		token.AND_NOT: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	}
	assignments = map[token.Token]token.Token{
		token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
		token.MUL_ASSIGN: token.ADD_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
		token.OR_ASSIGN: token.AND_ASSIGN, token.AND_ASSIGN: token.OR_ASSIGN,
		token.AND_NOT_ASSIGN: token.AND_ASSIGN, token.SHL_ASSIGN: token.SHR_ASSIGN,
		token.SHR_ASSIGN: token.SHL_ASSIGN,
	}
)

func (f *finder) binary(n *ast.BinaryExpr) {
	if isString(n.X) || isString(n.Y) {
		return // its + has no opposite
	}
	for _, op := range operators[n.Op] {
		x, y := f.of(n.X), f.of(n.Y)
		if logic := op == token.LAND || n.Op == token.LAND || op == token.LOR; logic {
			x, y = "("+x+")", "("+y+")"
		}
		text := x + " " + op.String() + " " + y
		if n.Op.Precedence() > token.EQL.Precedence() {
			text = "(" + text + ")"
		}
		f.replace(n, text, "")
	}
}

func isString(n ast.Expr) bool {
	lit, ok := n.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

// number moves a number by one, both ways.
func (f *finder) number(n *ast.BasicLit) {
	v, err := strconv.ParseInt(n.Value, 0, 64)
	if n.Kind != token.INT || err != nil {
		return
	}
	f.replace(n, strconv.FormatInt(v+1, 10), "")
	if v > 0 {
		f.replace(n, strconv.FormatInt(v-1, 10), "")
	}
}

// errors returns nil in place of each error, which is still made.
func (f *finder) errors(n *ast.ReturnStmt) {
	if len(n.Results) != len(f.results) {
		return
	}
	for i, r := range n.Results {
		if typ, ok := f.results[i].(*ast.Ident); ok && typ.Name == "error" && f.of(r) != "nil" {
			f.replace(r, "nil", "func(error) error { return nil }("+f.of(r)+")")
		}
	}
}

// statements leaves out each statement of a list that others do not depend on, and turns
// assignments round.
func (f *finder) statements(list []ast.Stmt) {
	for i, s := range list {
		last := i == len(list)-1
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
			if op, ok := assignments[s.Tok]; ok && !isString(s.Rhs[0]) {
				f.replace(s, f.of(s.Lhs[0])+" "+op.String()+" "+f.of(s.Rhs[0]), "")
			}
			f.leaveOut(s)
		case *ast.IncDecStmt:
			f.replace(s, f.of(s.X)+map[token.Token]string{token.INC: "--", token.DEC: "++"}[s.Tok], "")
			f.leaveOut(s)
		case *ast.ExprStmt:
			if !last || !strings.HasPrefix(f.of(s), "panic(") {
				f.leaveOut(s)
			}
		case *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
			f.leaveOut(s)
		case *ast.BranchStmt:
			if s.Tok == token.BREAK || s.Tok == token.CONTINUE {
				f.leaveOut(s)
			}
		case *ast.ReturnStmt:
			if len(s.Results) == 0 && (!last || len(list) == 1) {
				f.leaveOut(s)
			}
		}
	}
}

func (f *finder) leaveOut(s ast.Stmt) { f.replace(s, "", "if false { "+f.of(s)+" }") }

// line is where the candidate begins.
func (c *candidate) line() int { return 1 + strings.Count(c.file.text[:c.from], "\n") }

// change is the mutant as an entry of a list: the source from the first to the last line that it
// touches, as it is and with the mutant in it.
func (c *candidate) change() hunt.Change {
	text := c.file.text
	from, to := strings.LastIndexByte(text[:c.from], '\n')+1, len(text)
	if end := strings.IndexByte(text[c.to:], '\n'); end >= 0 {
		to = c.to + end
	}
	return hunt.Change{Dir: c.file.dir, Decl: c.decl, Old: text[from:to],
		New: text[from:c.from] + c.text + text[c.to:to]}
}

// files is the file with the mutant in it, by its path.
func (c *candidate) files() map[string]string {
	return map[string]string{c.file.path: c.file.text[:c.from] + c.planted + c.file.text[c.to:]}
}
