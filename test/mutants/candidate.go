package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"ibverbx/test/internal/hunt"
)

// candidate is a mutant that can be planted: one piece of a file is replaced.
type candidate struct {
	id       int // of a drawn mutant, from 1 on
	file     *source
	decl     string // where it is: "Type.method", "function", or the name of a variable
	from, to int    // what it replaces, in bytes of the file
	text     string // the replacement
	// guarded is code that chooses between the original and the mutant, with a \x00 in place of the
	// mutant's number. It does not compile everywhere, for example in a constant.
	guarded string
}

// source is a file of a package, with the types of the package.
type source struct {
	pkg        *hunt.Package
	path, text string
	syntax     *ast.File
	info       *types.Info
	types      *types.Package
}

// finder finds the candidates of a file.
type finder struct {
	*source
	fset *token.FileSet
	decl string
	list []candidate
}

// candidates finds all mutants of a package.
func candidates(code *hunt.Code, p *hunt.Package) (all []candidate, err error) {
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
	checked, err := code.Types(p, info)
	if err != nil {
		return nil, err
	}
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := finder{source: &source{p, path, string(text), p.Files[path], info, checked}, fset: code.Fset}
		for _, d := range f.syntax.Decls {
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
		ast.Inspect(d, f.visit)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				f.decl = v.Names[0].Name
				ast.Inspect(v, f.visit)
			}
		}
	}
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ArrayType:
		return false // its length
	case *ast.GenDecl:
		return n.Tok == token.VAR
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
		f.boolean(n.Cond, "true")
		f.boolean(n.Cond, "false")
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.boolean(n, f.of(n.X))
		}
	case *ast.BasicLit:
		f.number(n)
	case *ast.Ident:
		other := map[string]string{"true": "false", "false": "true"}[n.Name]
		if other != "" && f.info.Uses[n] == types.Universe.Lookup(n.Name) {
			f.value(n, f.info.Types[n].Type, other)
		}
	case *ast.ReturnStmt:
		f.errors(n)
	}
	return true
}

func (f *finder) span(n ast.Node) (from, to int) {
	return f.fset.Position(n.Pos()).Offset, f.fset.Position(n.End()).Offset
}

// of returns the source of a node.
func (f *finder) of(n ast.Node) string {
	from, to := f.span(n)
	return f.text[from:to]
}

func (f *finder) add(n ast.Node, text, guarded string) {
	from, to := f.span(n)
	f.list = append(f.list, candidate{0, f.source, f.decl, from, to, text, guarded})
}

// boolean replaces an expression that is true or false, but not a constant.
func (f *finder) boolean(n ast.Expr, text string) {
	tv := f.info.Types[n]
	if _, plain := tv.Type.(*types.Basic); plain && tv.Value == nil {
		f.add(n, text, "(mutantChosen == \x00 && ("+text+") || mutantChosen != \x00 && ("+f.of(n)+"))")
	}
}

// value replaces an expression with another of the same type.
func (f *finder) value(n ast.Expr, typ types.Type, text string) {
	name := types.TypeString(types.Default(typ), func(p *types.Package) string {
		if p == f.types {
			return ""
		}
		return p.Name()
	})
	f.add(n, text, "mutantOr(\x00, func() "+name+" { return "+text+" }, func() "+name+
		" { return "+f.of(n)+" })")
}

// operators has the replacement of each.
var operators = map[string]string{
	"<": "<= >=", "<=": "< >", ">": ">= <=", ">=": "> <", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
	"+": "-", "-": "+", "*": "+", "/": "*", "%": "*",
	"&": "|", "|": "&", "^": "&", "&^": "&", "<<": ">>", ">>": "<<",
}

func (f *finder) binary(n *ast.BinaryExpr) {
	tv := f.info.Types[n]
	for op := range strings.FieldsSeq(operators[n.Op.String()]) {
		x, y := f.of(n.X), f.of(n.Y)
		switch {
		case n.Op == token.LAND || n.Op == token.LOR:
			f.boolean(n, "("+x+") "+op+" ("+y+")")
		case n.Op.Precedence() == token.EQL.Precedence():
			f.boolean(n, x+" "+op+" "+y)
		case !isString(tv.Type):
			f.value(n, tv.Type, "("+x+" "+op+" "+y+")")
		}
	}
}

// isString reports whether a type is a string, whose + has no opposite.
func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

// number moves a number by one, both ways.
func (f *finder) number(n *ast.BasicLit) {
	tv := f.info.Types[n]
	if n.Kind != token.INT || tv.Value == nil {
		return
	}
	v, exact := constant.Int64Val(constant.ToInt(tv.Value))
	if !exact {
		return
	}
	f.value(n, tv.Type, strconv.FormatInt(v+1, 10))
	if v > 0 {
		f.value(n, tv.Type, strconv.FormatInt(v-1, 10))
	}
}

// errors returns nil in place of each error.
func (f *finder) errors(n *ast.ReturnStmt) {
	failure := types.Universe.Lookup("error").Type()
	methods := failure.Underlying().(*types.Interface)
	for _, r := range n.Results {
		tv := f.info.Types[r]
		if !tv.IsNil() && tv.Type != nil && types.Implements(tv.Type, methods) {
			f.value(r, failure, "nil")
		}
	}
}

// statements leaves out each statement of a list on which others do not depend, and reverses
// assignment operators.
func (f *finder) statements(list []ast.Stmt) {
	for i, s := range list {
		last := i == len(list)-1
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
			op := operators[strings.TrimSuffix(s.Tok.String(), "=")]
			turns := op != "" && s.Tok != token.XOR_ASSIGN // no seed has ever drawn it
			if turns && !isString(f.info.Types[s.Lhs[0]].Type) {
				f.statement(s, f.of(s.Lhs[0])+" "+op+"= "+f.of(s.Rhs[0]))
			}
			f.statement(s, "")
		case *ast.IncDecStmt:
			f.statement(s, f.of(s.X)+map[token.Token]string{token.INC: "--", token.DEC: "++"}[s.Tok])
			f.statement(s, "")
		case *ast.ExprStmt:
			if !last || !strings.HasPrefix(f.of(s), "panic(") {
				f.statement(s, "")
			}
		case *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
			f.statement(s, "")
		case *ast.BranchStmt:
			if s.Tok == token.BREAK || s.Tok == token.CONTINUE {
				f.statement(s, "")
			}
		case *ast.ReturnStmt:
			if len(s.Results) == 0 && (!last || len(list) == 1) {
				f.statement(s, "")
			}
		}
	}
}

// statement replaces a statement.
func (f *finder) statement(s ast.Stmt, text string) {
	f.add(s, text, "if mutantChosen == \x00 { "+text+" } else { "+f.of(s)+" }")
}

// place returns the file and line where the candidate begins.
func (c *candidate) place() string {
	line := 1 + strings.Count(c.file.text[:c.from], "\n")
	return filepath.Join(c.file.pkg.Rel, filepath.Base(c.file.path)) + ":" + strconv.Itoa(line)
}

// entry returns the mutant's entry in lists: its place, and the source from the first to the last
// line that it touches, with and without the mutant.
func (c *candidate) entry() string {
	text := c.file.text
	from, to := strings.LastIndexByte(text[:c.from], '\n')+1, len(text)
	if end := strings.IndexByte(text[c.to:], '\n'); end >= 0 {
		to = c.to + end
	}
	entry := "in " + c.file.pkg.Rel + " " + c.decl + "\n-" +
		strings.ReplaceAll(text[from:to], "\n", "\n-") + "\n"
	if after := text[from:c.from] + c.text + text[c.to:to]; strings.TrimSpace(after) != "" {
		entry += "+" + strings.ReplaceAll(after, "\n", "\n+") + "\n"
	}
	return entry
}
