package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutation is a deliberate bug in package ibverbx: text that stands there once, and what to put in its place.
type mutation struct {
	name    string
	file    string
	changes []change
}

type change struct{ old, new string }

// huntSeeds is how many worlds a mutation may survive.
const huntSeeds = 8000

// TestMutations plants one bug at a time in a copy of the package, and demands that the simulation finds it. A simulation that finds
// nothing proves nothing.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulation once for each bug")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	root := repository(t)
	found := make([]string, len(mutations))
	t.Run("all", func(t *testing.T) {
		for i, m := range mutations {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				caught, what := m.hunt(t, root)
				if !caught {
					t.Fatalf("survives %d worlds: %s", huntSeeds, what)
				}
				found[i] = what
			})
		}
	})
	for i, m := range mutations {
		t.Logf("%-55s %s", m.name, found[i])
	}
}

// repository is the directory of the module.
func repository(t *testing.T) string {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

var (
	foundSeed = regexp.MustCompile(`found: (.*)`)
	lowest    = regexp.MustCompile(`seed (\d+)`)
)

// build builds the simulation with the bug.
func (m *mutation) build(t *testing.T, root string) (bin string) {
	dir := t.TempDir()
	bin = filepath.Join(dir, "sim.test")
	build := exec.Command("go", "test", "-c", "-overlay", m.overlay(t, root, dir), "-o", bin, "ibverbx/test/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("does not build: %v\n%s", err, out)
	}
	return bin
}

// play runs a simulation that was built, and returns what it prints.
func play(bin string, args ...string) (out string, err error) {
	text, err := exec.Command(bin, append([]string{"-test.run", "TestSimulation$", "-test.timeout", "120s"}, args...)...).CombinedOutput()
	return string(text), err
}

// hunt looks for the bug in world after world.
func (m *mutation) hunt(t *testing.T, root string) (caught bool, what string) {
	bin := m.build(t, root)
	start := time.Now()
	out, err := play(bin, "-seeds", fmt.Sprint(huntSeeds), "-hunt")
	took := time.Since(start).Round(time.Millisecond)
	if found := foundSeed.FindStringSubmatch(out); found != nil {
		seed := lowest.FindStringSubmatch(found[1])
		return true, fmt.Sprintf("%5d worlds %8v  %.110s", atoi(seed[1])+1, took, found[1][strings.Index(found[1], "broken: ")+8:])
	}
	if err != nil {
		return true, fmt.Sprintf("      hangs or crashes %8v  %.110s", took, out)
	}
	return false, took.String()
}

// TestFailureIsShrunkAndReplays plants a bug and looks at what a person gets: a story that is much shorter than the world, and a command
// that tells the same again.
func TestFailureIsShrunkAndReplays(t *testing.T) {
	m := mutations[slices.IndexFunc(mutations, func(m mutation) bool { return m.name == "fence ignored" })]
	bin := m.build(t, repository(t))
	out, err := play(bin, "-seeds", "100")
	story := regexp.MustCompile(`(?s)broken: ([^:]*):.*?(\d+) of (\d+) events are enough:\n.*\n *replay: go test ./test/sim -run 'TestSimulation\$' -args -seed (\d+)\n`).FindStringSubmatch(out)
	if err == nil || story == nil || story[1] != string(ruleFence) || atoi(story[2]) > 3 || atoi(story[3]) < 20 {
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := play(bin, "-seed", story[4])
	if err == nil || !strings.Contains(again, story[1]) || !strings.Contains(again, story[2]+" of "+story[3]+" events are enough") {
		t.Fatalf("played again: %v\n%s", err, again)
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// overlay writes the file with the bug, and the list that has the go command take it in place of the true one.
func (m *mutation) overlay(t *testing.T, root, dir string) string {
	path := filepath.Join(root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source := string(text)
	for _, c := range m.changes {
		if n := strings.Count(source, c.old); n != 1 {
			t.Fatalf("%s has %d times, and must have once:\n%s", m.file, n, c.old)
		}
		source = strings.Replace(source, c.old, c.new, 1)
	}
	copied := filepath.Join(dir, m.file)
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: copied}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	for name, content := range map[string][]byte{copied: []byte(source), overlay: list} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
