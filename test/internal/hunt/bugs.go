package hunt

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	var c *change // the one that lines are added to
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
