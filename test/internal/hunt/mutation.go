package hunt

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Mutation is a deliberate bug: texts that stand once in a file, and what to put in their place.
type Mutation struct {
	Name    string
	File    string // from the root of the module
	Changes []Change
}

// Change replaces Old by New.
type Change struct{ Old, New string }

// Hunt is the function of that name with the flag -mutate; without, it looks whether every bug still has its place in the source.
func (f *Flags) Hunt(t *testing.T, g *Game, list []Mutation, worlds uint64) {
	if !f.mutate {
		for i := range list {
			t.Run(list[i].Name, func(t *testing.T) { list[i].overlay(t, root(t), t.TempDir()) })
		}
		return
	}
	Hunt(t, g, list, worlds)
}

// Hunt plants one bug at a time and demands that the game finds it within so many worlds. A simulation that finds nothing proves nothing.
func Hunt(t *testing.T, g *Game, list []Mutation, worlds uint64) {
	found := make([]string, len(list))
	t.Run("all", func(t *testing.T) {
		for i := range list {
			t.Run(list[i].Name, func(t *testing.T) {
				t.Parallel()
				found[i] = list[i].hunt(t, g, worlds)
			})
		}
	})
	for i := range list {
		t.Logf("%-60s %s", list[i].Name, found[i])
	}
}

var foundSeed = regexp.MustCompile(`found: seed (\d+), event \d+: broken: (.*)`)

// hunt looks for the bug in world after world.
func (m *Mutation) hunt(t *testing.T, g *Game, worlds uint64) string {
	bin := m.Build(t, g)
	start := time.Now()
	out, err := g.Run(bin, "-seeds", fmt.Sprint(worlds), "-hunt")
	took := time.Since(start).Round(time.Millisecond)
	if found := foundSeed.FindStringSubmatch(out); found != nil {
		return fmt.Sprintf("seed %5s %8v  %.100s", found[1], took, found[2])
	}
	if err != nil {
		return fmt.Sprintf("hangs or crashes %8v  %.100s", took, out)
	}
	t.Fatalf("survives %d worlds", worlds)
	return ""
}

// root is the module's directory, two above that of a game.
func root(t *testing.T) string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Run plays with a test that Build has built, and returns what it prints.
func (g *Game) Run(bin string, args ...string) (out string, err error) {
	text, err := exec.Command(bin, append([]string{"-test.run", g.Test + "$", "-test.timeout", "120s"}, args...)...).CombinedOutput()
	return string(text), err
}

// Build builds the game's test with the bug.
func (m *Mutation) Build(t *testing.T, g *Game) (bin string) {
	root, dir := root(t), t.TempDir()
	bin = filepath.Join(dir, "mutant.test")
	build := exec.Command("go", "test", "-c", "-overlay", m.overlay(t, root, dir), "-o", bin, g.Dir)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("does not build: %v\n%s", err, out)
	}
	return bin
}

// overlay writes the file with the bug, and the list that has the go command take it in place of the true one.
func (m *Mutation) overlay(t *testing.T, root, dir string) string {
	path := filepath.Join(root, m.File)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source := string(text)
	for _, c := range m.Changes {
		if n := strings.Count(source, c.Old); n != 1 {
			t.Fatalf("%s has %d times, and must have once:\n%s", m.File, n, c.Old)
		}
		source = strings.Replace(source, c.Old, c.New, 1)
	}
	copied := filepath.Join(dir, filepath.Base(m.File))
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
