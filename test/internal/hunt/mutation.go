package hunt

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// Hunt with the flag -mutate plants the bugs, one at a time, and demands that the game finds each
// within so many worlds. Without the flag it checks that every bug has its place in the source, and
// with -kit that it compiles there.
func (f *Flags) Hunt(t *testing.T, g *Game, bugs Bugs, worlds uint64) {
	if f.mutate {
		if f.every < 1 || f.from < 0 || f.from >= f.every {
			t.Fatalf("-every %d -from %d: -every must be positive, -from 0 to one less", f.every, f.from)
		}
		f.plantAll(t, g, bugs, worlds)
		return
	}
	list, root := bugs.read(t), root(t)
	code := &Code{} // checks nothing
	if f.kit {
		var dirs []string
		for _, b := range list {
			for _, c := range b.Changes {
				dirs = append(dirs, c.Dir)
			}
		}
		var err error
		if code, err = Load(root, dirs); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range list {
		t.Run(b.Name, func(t *testing.T) {
			files, err := b.plant(root)
			if err == nil {
				err = code.Check(files)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// plantAll plants the selected bugs, one at a time.
func (f *Flags) plantAll(t *testing.T, g *Game, bugs Bugs, worlds uint64) {
	list := bugs.read(t)
	found := make([]string, len(list))
	t.Run("all", func(t *testing.T) {
		for i := f.from; i < len(list); i += f.every {
			t.Run(list[i].Name, func(t *testing.T) {
				t.Parallel()
				found[i] = g.hunt(t, g.Build(t, bugs, list[i].Name), worlds)
			})
		}
	})
	for i, how := range found {
		if how != "" {
			t.Logf("%-60s %s", list[i].Name, how)
		}
	}
}

var foundSeed = regexp.MustCompile(`found: seed (\d+), event \d+: broken: (.*)`)

// hunt plays a test that was built with a bug, and returns its finding.
func (g *Game) hunt(t *testing.T, bin string, worlds uint64) string {
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

// root returns the module's directory, two above that of a game.
func root(t *testing.T) string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Run runs a test that Build has built, and returns its output.
func (g *Game) Run(bin string, args ...string) (out string, err error) {
	text, err := exec.Command(bin, append([]string{"-test.run", g.Test + "$", "-test.timeout", "120s"},
		args...)...).CombinedOutput()
	return string(text), err
}

// Build builds the game's test with the named bug.
func (g *Game) Build(t *testing.T, bugs Bugs, name string) (bin string) {
	all := bugs.read(t)
	i := slices.IndexFunc(all, func(b bug) bool { return b.Name == name })
	if i < 0 {
		t.Fatalf("%s has no bug %q", bugs.File, name)
	}
	root, dir := root(t), t.TempDir()
	files, err := all[i].plant(root)
	if err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(dir, "mutant.test")
	if err := Build(bin, root, g.Dir, files); err != nil {
		t.Fatal(err)
	}
	return bin
}
