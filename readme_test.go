package ibverbx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's programs are what a newcomer copies first: they must compile, run, and print what
// they should.
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
