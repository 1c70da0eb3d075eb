package ibverbx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's program is what a newcomer copies first: it must compile, run, and print what it should.
func TestREADMEProgramRuns(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	program, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatal("README.md has no Go program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", file).CombinedOutput()
	if want := "RECV_RDMA_WITH_IMM, immediate 7: \"hello over eight queue pairs\"\n"; err != nil || string(out) != want {
		t.Fatalf("%v\n%swant %s", err, out, want)
	}
}
