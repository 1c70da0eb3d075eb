package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ibverbx/test/internal/hunt"
)

const sample = `package p

import "errors"

const limit = 2

type queue struct{ n, max int }

func (q *queue) push(k int) (err error) {
	if q.n+k > q.max { // "\x00%d"
		return errors.New("full")
	}
	q.n += k
	return nil
}

func either(a, b bool) bool { return a || !b }

func double(n int) int {
	return 2 * next(n)
}

func next(n int) int { return n + 1 }
`

const sampleTest = `package p

import "testing"

func TestPush(t *testing.T) {
	q := queue{max: 3}
	if err := q.push(2); err != nil || q.n != 2 {
		t.Fatal(q, err)
	}
	if err := q.push(2); err == nil {
		t.Fatal(q)
	}
}
`

// loadSample writes a module with the sample package and loads it.
func loadSample(t *testing.T) (root string, code *hunt.Code, all []candidate) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{"go.mod": "module sample\ngo 1.26\n", "p/p.go": sample,
		"p/p_test.go": sampleTest} {
		if err := os.MkdirAll(filepath.Join(root, "p"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, all, err := load(root, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	return root, code, all
}

func TestMutants(t *testing.T) {
	root, code, all := loadSample(t)

	t.Run("every kind of slip", func(t *testing.T) {
		var got []string
		for _, c := range all {
			got = append(got, fmt.Sprintf("%s: %s => %s", c.decl, c.file.text[c.from:c.to], c.text))
		}
		want := []string{
			"limit: 2 => 3", "limit: 2 => 1",
			"queue.push: q.n += k => q.n -= k", "queue.push: q.n += k => ",
			"queue.push: q.n+k > q.max => true", "queue.push: q.n+k > q.max => false",
			"queue.push: q.n+k > q.max => q.n+k >= q.max", "queue.push: q.n+k > q.max => q.n+k <= q.max",
			"queue.push: q.n+k => (q.n - k)",
			`queue.push: errors.New("full") => nil`,
			"either: a || !b => (a) && (!b)", "either: !b => b",
			"double: 2 * next(n) => (2 + next(n))", "double: 2 => 3", "double: 2 => 1",
			"next: n + 1 => (n - 1)", "next: 1 => 2", "next: 1 => 0",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})

	t.Run("found, surviving, and alone", func(t *testing.T) {
		if testing.Short() {
			t.Skip("builds several test binaries")
		}
		var some []candidate // with three builds: two of one place, and one alone
		for _, c := range all {
			switch c.text {
			case "3", "true", "q.n+k >= q.max", "nil", "2":
				if c.decl != "double" {
					some = append(some, c)
				}
			}
		}
		packages, err := hunt.List(root, "./...")
		if err != nil {
			t.Fatal(err)
		}
		trial := trial{root: root, all: packages, out: io.Discard}
		if err := trial.judgeAll(code, some); err != nil {
			t.Fatal(err)
		}
		// The constant, the bound itself, and the function that no test calls survive.
		if trial.found != 2 || trial.survived != 3 || trial.unbuilt != 0 {
			t.Errorf("%d found, %d survive, %d do not build; survivors:\n%s", trial.found, trial.survived,
				trial.unbuilt, &trial.list)
		}
		again := filepath.Join(t.TempDir(), "survivors.txt")
		if err := os.WriteFile(again, []byte(trial.list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		listed, err := entries(again)
		if err != nil || len(listed) != 3 {
			t.Fatalf("%d listed, %v", len(listed), err)
		}
		if again, rest := divide(all, listed); len(again) != 3 || len(rest) != len(all)-3 {
			t.Errorf("%d of the list found again, %d left", len(again), len(rest))
		}
	})
}

func TestDrawnBySeed(t *testing.T) {
	list := make([]candidate, 100)
	for i := range list {
		list[i].from = i
	}
	places := func(seed uint64) (all []int) {
		for _, c := range draw(list, 10, seed) {
			all = append(all, c.from)
		}
		return all
	}
	if a, b := places(1), places(1); !slices.Equal(a, b) {
		t.Errorf("one seed drew %v and %v", a, b)
	}
	if a, b := places(1), places(2); slices.Equal(a, b) {
		t.Errorf("two seeds drew %v", a)
	}
}
