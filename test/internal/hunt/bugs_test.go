package hunt

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const sample = `package p

// limit is the largest.
const limit = 1 << 10

func (q *queue[T]) push(v T) bool {
	if q.full() { // no room
		return false
	}
	q.put(v)
	return true
}

func push(n int) int {
	return n + 1
}
`

func TestCodeIsReplacedInItsDeclaration(t *testing.T) {
	for _, c := range []struct {
		name, decl, before, after string
		want                      string // what the source has then
		err                       string
	}{
		{name: "method of a generic type", decl: "queue.push", before: "return true", after: "return false",
			want: "q.put(v)\n\treturn false"},
		{name: "comments and line ends do not count", decl: "queue.push",
			before: "if q.full() {\n\n return false }", after: "", want: "bool {\n\t\n\tq.put(v)"},
		{name: "function beside a method of its name", decl: "push", before: "n + 1", after: "n",
			want: "return n\n"},
		{name: "constant", decl: "limit", before: "1<<10", after: "1<<11", want: "limit = 1<<11"},
		{name: "no part of a token", decl: "push", before: "retur", err: "does not occur there"},
		{name: "twice", decl: "push", before: "n", err: "more than once"},
		{name: "nothing", decl: "push", before: "// n", err: "nothing to replace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := findDecl(sample, c.decl)
			if err != nil || at == (span{}) {
				t.Fatalf("declaration %s: %v, %v", c.decl, at, err)
			}
			got, err := replaceCode(sample, at, c.before, c.after)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !strings.Contains(got, c.want) {
				t.Fatalf("error %v, got:\n%s", err, got)
			}
		})
	}
	if at, err := findDecl(sample, "queue.pop"); err != nil || at != (span{}) {
		t.Errorf("a method that is not there: %v, %v", at, err)
	}
}

func TestBugsAreParsed(t *testing.T) {
	list, err := parse("p", "# comment\nbug two changes\nin a\n-\told\n+\tnew\n-\tx\nin x/y "+
		"b\n-\ty\n+\tz\n")
	if err != nil || len(list) != 1 || len(list[0].Changes) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[0].Changes[1]; got != (change{Dir: "p", Decl: "a", Old: "\tx\n"}) {
		t.Errorf("second change: %+v", got)
	}
	if got := list[0].Changes[2]; got != (change{Dir: "x/y", Decl: "b", Old: "\ty\n", New: "\tz\n"}) {
		t.Errorf("third change: %+v", got)
	}
	for _, bad := range []string{"in a\n", "bug b\n-\tx\n", "bug b\n", "what\n"} {
		if _, err := parse("p", bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// A world that never ends is found, and progress is reported until then.
func TestWorldThatNeverEndsIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		g := Game{Play: func(seed uint64, _ []int, _ func(string)) *Violation {
			if seed == 3 {
				<-end
			}
			return nil
		}}
		var progress strings.Builder
		if v := g.Search(0, 10, &progress); v == nil || !v.Endless || v.Seed != 3 {
			t.Errorf("found %v", v)
		}
		time.Sleep(patience)
		if n := strings.Count(progress.String(), " of 10 worlds\n"); n != int(patience/time.Second)/2 {
			t.Errorf("%d reports:\n%s", n, &progress)
		}
	})
}
