package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strconv"
	"strings"

	"ibverbx/test/internal/hunt"
)

// candidate is a mutant that can be planted.
type candidate struct {
	file     *source
	decl     string // where it is: "Type.method", "function", or the name of a variable
	from, to int    // what it replaces, in bytes of the file
	text     string // by what
	// guarded is code that is the original or the mutant, with a \x00 where the mutant's number
	// belongs; "" where there is no such code.
	guarded string
}

// finder finds the candidates of a file.
type finder struct {
	file  *source
	decl  string
	alone bool // outside of functions
	list  []candidate
}

// candidates finds all mutants of a file.
func candidates(file *source) []candidate {
	f := finder{file: file}
	for _, d := range file.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				f.decl, f.alone = hunt.FuncName(d), false
				ast.Inspect(d.Body, f.visit)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					f.decl, f.alone = v.Names[0].Name, true
					for _, value := range v.Values {
						ast.Inspect(value, f.visit)
					}
				}
			}
		}
	}
	return f.list
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
		f.condition(n.Cond)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.boolean(n, f.of(n.X))
		}
	case *ast.BasicLit:
		f.number(n)
	case *ast.Ident:
		f.truth(n)
	case *ast.ReturnStmt:
		f.errors(n)
	}
	return true
}

// of is the source of a node.
func (f *finder) of(n ast.Node) string {
	from, to := f.file.span(n)
	return f.file.text[from:to]
}

func (f *finder) add(n ast.Node, text, guarded string) {
	from, to := f.file.span(n)
	if f.alone {
		guarded = ""
	}
	f.list = append(f.list, candidate{f.file, f.decl, from, to, text, guarded})
}

// boolean replaces an expression that is true or false, but not a constant.
func (f *finder) boolean(n ast.Expr, text string) {
	tv := f.file.info.Types[n]
	if tv.Value != nil {
		return
	}
	if _, plain := tv.Type.(*types.Basic); !plain {
		return
	}
	f.add(n, text, "(mutantPlanted == \x00 && ("+text+") || mutantPlanted != \x00 && ("+f.of(n)+"))")
}

// value replaces an expression by another of the same type.
func (f *finder) value(n ast.Expr, typ types.Type, text string) {
	name, ok := f.file.typeName(typ)
	switch original := f.of(n); {
	case !ok:
		f.add(n, text, "")
	case f.file.calls(n):
		f.add(n, text, "mutantLazy(\x00, func() "+name+" { return "+text+" }, func() "+name+
			" { return "+original+" })")
	default:
		f.add(n, text, "mutantPick["+name+"](\x00, "+text+", "+original+")")
	}
}

// condition decides an if for good.
func (f *finder) condition(n ast.Expr) {
	f.boolean(n, "true")
	f.boolean(n, "false")
}

var (
	comparisons = map[token.Token][]token.Token{
		token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
		token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
		token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
		token.LAND: {token.LOR}, token.LOR: {token.LAND},
	}
	operators = map[token.Token]token.Token{
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL,
		token.REM: token.MUL, token.AND: token.OR, token.OR: token.AND, token.XOR: token.AND,
		token.AND_NOT: token.AND, token.SHL: token.SHR, token.SHR: token.SHL,
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
	with := func(op token.Token) string {
		x, y := f.of(n.X), f.of(n.Y)
		if op == token.LAND || n.Op == token.LAND || op == token.LOR {
			x, y = "("+x+")", "("+y+")"
		}
		return x + " " + op.String() + " " + y
	}
	for _, op := range comparisons[n.Op] {
		f.boolean(n, with(op))
	}
	op, ok := operators[n.Op]
	tv := f.file.info.Types[n]
	if !ok || isString(tv.Type) {
		return
	}
	f.value(n, tv.Type, "("+with(op)+")")
}

func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

// number moves a number by one, both ways.
func (f *finder) number(n *ast.BasicLit) {
	tv := f.file.info.Types[n]
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

// truth turns true into false and false into true.
func (f *finder) truth(n *ast.Ident) {
	other := map[string]string{"true": "false", "false": "true"}[n.Name]
	if f.file.info.Uses[n] == types.Universe.Lookup(n.Name) && other != "" {
		f.value(n, f.file.info.Types[n].Type, other)
	}
}

// errors returns nil in place of each error.
func (f *finder) errors(n *ast.ReturnStmt) {
	for _, r := range n.Results {
		tv := f.file.info.Types[r]
		if tv.IsNil() || tv.Type == nil || !types.Implements(tv.Type, errorType) {
			continue
		}
		f.add(r, "nil", "mutantPick[error](\x00, nil, "+f.of(r)+")")
	}
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

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
			if op, ok := assignments[s.Tok]; ok && !isString(f.file.info.Types[s.Lhs[0]].Type) {
				f.other(s, f.of(s.Lhs[0])+" "+op.String()+" "+f.of(s.Rhs[0]))
			}
			f.leaveOut(s)
		case *ast.IncDecStmt:
			op := map[token.Token]string{token.INC: "--", token.DEC: "++"}[s.Tok]
			f.other(s, f.of(s.X)+op)
			f.leaveOut(s)
		case *ast.ExprStmt:
			if !last || !isPanic(s.X) {
				f.leaveOut(s)
			}
		case *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
			f.leaveOut(s)
		case *ast.BranchStmt:
			if s.Tok == token.BREAK || s.Tok == token.CONTINUE {
				f.leaveOut(s)
			}
		case *ast.ReturnStmt:
			if len(s.Results) == 0 && !last {
				f.leaveOut(s)
			}
		}
	}
	if len(list) == 1 {
		if r, ok := list[0].(*ast.ReturnStmt); ok && len(r.Results) == 0 {
			f.leaveOut(r)
		}
	}
}

func isPanic(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	name, ok := call.Fun.(*ast.Ident)
	return ok && name.Name == "panic"
}

func (f *finder) leaveOut(s ast.Stmt) {
	f.add(s, "", "if mutantPlanted != \x00 { "+f.of(s)+" }")
}

func (f *finder) other(s ast.Stmt, text string) {
	f.add(s, text, "if mutantPlanted == \x00 { "+text+" } else { "+f.of(s)+" }")
}

// lines is the source from the first to the last line that the mutant touches, as it is and with
// the mutant in it.
func (c *candidate) lines() (before, after string) {
	text := c.file.text
	from := strings.LastIndexByte(text[:c.from], '\n') + 1
	to := c.to
	if end := strings.IndexByte(text[c.to:], '\n'); end >= 0 {
		to += end
	} else {
		to = len(text)
	}
	return text[from:to], text[from:c.from] + c.text + text[c.to:to]
}

// change is the mutant as an entry of a list.
func (c *candidate) change() hunt.Change {
	before, after := c.lines()
	return hunt.Change{Dir: c.file.dir, Decl: c.decl, Old: before, New: after}
}
