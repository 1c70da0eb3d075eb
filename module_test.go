package ibverbx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"ibverbx"
)

// module is the path of this module.
var module = reflect.TypeFor[ibverbx.Config]().PkgPath()

// goPackage is go list's description of a package.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// goList describes packages of this module, with their imports.
func goList(t *testing.T, patterns ...string) map[string]goPackage {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command, which knows the imports, is not here")
	}
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Standard,Imports,Deps"},
		patterns...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

// The root package, verbs and the software NICs import only the standard library: no C, no
// sockets.
func TestImportsOfTheCore(t *testing.T) {
	core := []string{module, module + "/verbs", module + "/verbs/soft",
		module + "/verbs/internal/nic", module + "/internal/ring", module + "/internal/dqplb",
		module + "/internal/wrid", module + "/internal/failover", module + "/internal/ability",
		module + "/internal/guard", module + "/internal/errwrap"}
	packages := goList(t, core...)
	for _, path := range core {
		p, ok := packages[path]
		if !ok {
			t.Fatalf("go list does not know %s", path)
		}
		for _, dep := range append(slices.Clone(p.Deps), p.Imports...) {
			switch {
			case dep == "C" || dep == "net" || dep == "runtime/cgo":
				t.Errorf("%s depends on %q", path, dep)
			case packages[dep].Standard, slices.Contains(core, dep),
				strings.HasPrefix(dep, "golang.org/x/sys/"):
			default:
				t.Errorf("%s depends on %s, which is neither standard library nor golang.org/x/sys", path,
					dep)
			}
		}
	}
}

// Package rendezvous connects what has a card, and imports none of what has one: who connects
// virtual queue pairs does not pay for the layers above, or for a provider. Package job stands on
// it, and asks libpmix by way of purego.
func TestImportsOfRendezvous(t *testing.T) {
	packages := goList(t, module+"/rendezvous", module+"/job")
	for _, path := range []string{module + "/rendezvous", module + "/job"} {
		for _, dep := range packages[path].Deps {
			switch {
			case dep == module+"/verbs", packages[dep].Standard,
				dep == module+"/internal/peertext", dep == module+"/internal/guard":
			case path == module+"/job" && (dep == module+"/rendezvous" || dep == path+"/internal/pmix" ||
				dep == module+"/internal/roster" || strings.HasPrefix(dep, "github.com/ebitengine/purego")):
			default:
				t.Errorf("%s depends on %s", path, dep)
			}
		}
	}
}

// Imports point down the layers: verbs is below everything but internal/guard, providers do not
// import each other, and the root package imports verbs alone.
func TestImportsPointDown(t *testing.T) {
	packages := goList(t, module+"/verbs/...", module)
	failoverImports := []string{module + "/internal/wrid", module + "/verbs"}
	ours := func(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }
	for path, p := range packages {
		for _, dep := range p.Deps {
			switch {
			case !ours(path) || !ours(dep) || dep == module+"/internal/guard":
			case path == module+"/verbs":
				t.Errorf("%s imports %s: it is below all others", path, dep)
			case path == module && dep != module+"/verbs" && !strings.HasPrefix(dep, module+"/internal/"):
				t.Errorf("%s imports %s: it must import no provider", path, dep)
			case path == module+"/internal/failover" && slices.Contains(failoverImports, dep):
			case path == module+"/internal/ability" && dep == module+"/internal/ring":
			case strings.HasPrefix(path, module+"/internal/"):
				t.Errorf("%s imports %s: internal packages import nothing else of the module", path, dep)
			case strings.HasPrefix(path, module+"/verbs/") && dep == module:
				t.Errorf("%s imports %s, which is above the providers", path, dep)
			}
		}
	}
}

// Newcomers copy the README's programs first: they must compile, run, and print what they should.
func TestREADMEProgramsRun(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := strings.Split(string(readme), "```go\npackage main\n")[1:]
	prints := []string{
		"RECV_RDMA_WITH_IMM, immediate 7: \"hello over eight queue pairs\"\n",
		"from alice: 67108864 bytes, \"\\x00\\x00\\x00\\x00\\x00\" ...\nfrom alice: 10 bytes, \"hello\" " +
			"...\n",
	}
	if len(programs) != len(prints) {
		t.Fatalf("README.md has %d Go programs, not %d", len(programs), len(prints))
	}
	for i, rest := range programs {
		program, _, _ := strings.Cut(rest, "```")
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte("package main\n"+program), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "run", file).CombinedOutput()
		if err != nil || string(out) != prints[i] {
			t.Errorf("program %d: %v\n%swant %s", i+1, err, out, prints[i])
		}
	}
}

// The commands that the README gives for another module, clone beside it, find all that its first
// program imports, which runs above.
func TestREADMEUseFromAnotherModule(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, commands, _ := strings.Cut(string(readme), "\n```\ngo mod edit ")
	commands, _, _ = strings.Cut("go mod edit "+commands, "```")
	_, program, _ := strings.Cut(string(readme), "```go\n")
	program, _, _ = strings.Cut(program, "```")

	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "program")
	if err := errors.Join(
		os.Mkdir(dir, 0o700),
		os.Symlink(here, filepath.Join(dir, "..", "ibverbx")),
		os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600),
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.org/program\n\ngo 1.26\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, line := range append(strings.Split(strings.TrimSpace(commands), "\n"), "go list -deps .") {
		line, _, _ = strings.Cut(line, "#")
		args := strings.Fields(line)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if line == "go list -deps ." && !strings.Contains(string(out), "example.org/program\n") {
			t.Errorf("%s prints\n%s", line, out)
		}
	}
}

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

// The forge's workflow calls .ci/run with the tiers that it has, each from one job, and .ci/run
// refuses others.
func TestTiers(t *testing.T) {
	const file = ".github/workflows/ci.yml"
	workflow, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var called []string
	for l := range strings.Lines(string(workflow)) {
		if _, tier, ok := strings.Cut(l, " .ci/run "); ok && !strings.HasPrefix(l, "#") {
			called = append(called, strings.Fields(tier)[0])
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	out, err := exec.Command(bash, ".ci/run", "no such tier").CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	_, text, _ := strings.Cut(string(out), "[")
	text, _, _ = strings.Cut(text, "]")
	if tiers := strings.Split(text, "|"); len(tiers) < 2 || !slices.Equal(called, tiers) {
		t.Errorf("%s calls the tiers %q, .ci/run has %q", file, called, tiers)
	}
}
