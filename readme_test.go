package ibverbx_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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

// The commands that the README gives for another module, clone beside it, make its first program
// run there.
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
	for _, line := range append(strings.Split(strings.TrimSpace(commands), "\n"), "go run .") {
		line, _, _ = strings.Cut(line, "#")
		args := strings.Fields(line)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if line == "go run ." && !strings.Contains(string(out), "hello over eight queue pairs") {
			t.Errorf("%s prints\n%s", line, out)
		}
	}
}
