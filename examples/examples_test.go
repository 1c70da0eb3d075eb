package examples_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
)

// bin is the directory of the built examples.
var bin string

var book = flag.Bool("book", false, "run the commands and programs of docs/book, which takes a minute")

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "examples"); err != nil {
		panic(err)
	}
	flag.Parse()
	build := exec.Command("go", "build", "-ldflags=-w", "-o", bin, "./...")
	if *book {
		build.Args = append(build.Args, "../cmd/ibverbx")
	}
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, out))
	}
	m.Run()
	_ = os.RemoveAll(bin)
}

// A vector has no negative length: the flag is refused before the job is joined.
func TestNegativeLength(t *testing.T) {
	out, err := exec.Command(filepath.Join(bin, "allreduce"), "-len", "-1").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), `invalid value "-1" for flag -len`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// freeAddr returns an address at which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = free.Close() }()
	return free.Addr().String()
}

// Users copy the examples: each must build, run, and print what it has verified.
func TestExamplesRun(t *testing.T) {
	addr := freeAddr(t)
	// The processes of an example, and what each of them prints.
	type process struct {
		args  []string
		print string
		env   []string
	}
	examples := map[string][]process{
		"twoprocesses": {
			{args: []string{"-dial", addr}, print: "sent 16 blocks at RATE GB/s, verified by the receiver\n"},
			{args: []string{"-listen", addr},
				print: "received 16 blocks of 1048576 bytes in order, every byte verified\n"},
		},
		"scattergather": {{print: "write: 256 rows gathered into 65536 bytes\n" +
			"read: 65536 bytes scattered over 256 rows\n" +
			"send: 528 bytes received in two pieces\n"}},
		"shmem": {{print: "200 steps on 4 PEs: all 4000 cells are as one processor computes them\n"}},
	}
	for rank := range 3 {
		examples["allreduce"] = append(examples["allreduce"], process{[]string{"-len", "1000"},
			fmt.Sprintf("rank %d of 3: 1000 sums verified\n", rank),
			[]string{fmt.Sprint("IBVERBX_RANK=", rank), "IBVERBX_SIZE=3", "IBVERBX_ADDRESS=" + addr}})
		examples["tagged"] = append(examples["tagged"], process{nil,
			fmt.Sprintf("rank %d of 3: 100 steps, 1000 cells as one process computes them\n", rank),
			[]string{fmt.Sprint("IBVERBX_RANK=", rank), "IBVERBX_SIZE=3", "IBVERBX_ADDRESS=" + addr}})
		examples["halo"] = append(examples["halo"], process{nil,
			fmt.Sprintf("rank %d of 3: 300 steps, 50000 cells as one process computes them\n", rank),
			[]string{fmt.Sprint("IBVERBX_RANK=", rank), "IBVERBX_SIZE=3", "IBVERBX_ADDRESS=" + addr}})
	}
	for rank := range 6 {
		examples["matmul"] = append(examples["matmul"], process{nil,
			fmt.Sprintf("rank %d of 6: block %d, %d of 2 by 3: 3456 products as one process computes them\n",
				rank, rank/3, rank%3),
			[]string{fmt.Sprint("IBVERBX_RANK=", rank), "IBVERBX_SIZE=6", "IBVERBX_ADDRESS=" + addr}})
	}
	rate := regexp.MustCompile(`[0-9]+\.[0-9]{2} GB/s`)
	for name, processes := range examples {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(bin, name)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			outs, errs := make([]bytes.Buffer, len(processes)), make([]bytes.Buffer, len(processes))
			cmds := make([]*exec.Cmd, len(processes))
			for i, p := range processes {
				cmds[i] = exec.CommandContext(ctx, program, p.args...)
				cmds[i].Env = append(os.Environ(), p.env...)
				cmds[i].Stdout, cmds[i].Stderr = &outs[i], &errs[i]
				if err := cmds[i].Start(); err != nil {
					t.Fatal(err)
				}
			}
			for i, p := range processes {
				err, out := cmds[i].Wait(), rate.ReplaceAllString(outs[i].String(), "RATE GB/s")
				if err != nil || out != p.print {
					t.Errorf("%v: %v\n%s%swant\n%s", p.args, err, out, errs[i].String(), p.print)
				}
			}
		})
	}

	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(e.Name(), "go.mod")); err == nil {
			continue // a module of its own, which CI runs
		}
		if _, known := examples[e.Name()]; e.IsDir() && !known {
			t.Errorf("%s: no expected output: every example is run by this test", e.Name())
		}
	}
}

// A process whose peer dies learns it at once, whatever it waits for.
func TestTwoProcessesPeerDies(t *testing.T) {
	addr := freeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "twoprocesses"), "-listen", addr)
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := sayNothing(ctx, addr); err != nil {
		cancel()
		_ = cmd.Wait()
		t.Fatalf("%v\n%s", err, errs.String())
	}
	err := cmd.Wait()
	const died = "the process has died" // where the NIC knows it before the conversation does
	if said := errs.String(); ctx.Err() != nil || err == nil ||
		!strings.Contains(said, rendezvous.ErrGone.Error()) && !strings.Contains(said, died) {
		t.Errorf("%v, %v\n%swant an error that says %q or %q", ctx.Err(), err, said, rendezvous.ErrGone, died)
	}
}

// sayNothing is a peer that connects, exchanges, and goes without having written anything.
func sayNothing(ctx context.Context, addr string) error {
	host, err := nics.Open(nics.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	cfg := rendezvous.Config{Protocol: "twoprocesses/1", Retry: 10 * time.Second}
	conn, err := rendezvous.Dial(ctx, addr, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	vqp, err := host.Connect(ctx, conn, ibverbx.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = vqp.Close() }()
	_, err = rendezvous.Exchange(ctx, conn, ibverbx.RemoteMR{})
	return err
}

// block is a piece of code in a page of the book.
type block struct {
	page, language, code string
	from                 string // the file that an excerpt is from
}

// blocks returns all code of the book.
func blocks(t *testing.T) (list []block) {
	t.Helper()
	const dir = "../docs/book/"
	pages, err := filepath.Glob(dir + "*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	link := regexp.MustCompile(`(?s).*\nFrom \[[^]]*\]\(([^)]*)\)`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		parts, from := strings.Split(string(text), "\n```"), ""
		if len(parts)%2 == 0 {
			t.Fatalf("%s: a block of code has no end", page)
		}
		for i := 1; i < len(parts); i += 2 {
			if m := link.FindStringSubmatch(parts[i-1]); m != nil {
				from = dir + m[1]
			}
			language, code, _ := strings.Cut(parts[i], "\n")
			list = append(list, block{page, language, code, from})
		}
	}
	return list
}

// An excerpt in the book stands so in the file that it is from; "..." is for what is left out.
func TestBookExcerpts(t *testing.T) {
	flat := func(text string) string { // without indentation
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return strings.Join(lines, "\n")
	}
	for _, b := range blocks(t) {
		if b.language != "go" || strings.HasPrefix(b.code, "package main\n") {
			continue
		}
		text, err := os.ReadFile(b.from)
		if err != nil {
			t.Errorf("%s: an excerpt of no file: %v\n%s", b.page, err, b.code)
			continue
		}
		rest := flat(string(text))
		for part := range strings.SplitSeq(flat(b.code), "\n...\n") {
			_, behind, ok := strings.Cut(rest, part)
			if !ok {
				t.Errorf("%s: not in %s, or not behind what stands above:\n%s", b.page, b.from, part)
				break
			}
			rest = behind
		}
	}
}

// The commands of the book work, and its programs run.
func TestBook(t *testing.T) {
	if !*book {
		t.Skip("-book is not set")
	}
	for _, b := range blocks(t) {
		switch {
		case b.language == "sh":
			t.Run(filepath.Base(b.page), func(t *testing.T) { runCommands(t, b.code) })
		case strings.HasPrefix(b.code, "package main\n"):
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(b.code), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "run", file).CombinedOutput(); err != nil {
				t.Errorf("the program of %s: %v\n%s", b.page, err, out)
			}
		}
	}
}

// runCommands runs commands in turn. One that listens goes on in the background, and the next is
// its peer.
func runCommands(t *testing.T, commands string) {
	programs := regexp.MustCompile(`go run \./(cmd|examples)/`)
	// At a port of their own: others may run these commands at the same time.
	ports, addr := regexp.MustCompile(`(listen|connect|dial|doctor) 127\.0\.0\.1(:\d+)?`), freeAddr(t)
	var listener *exec.Cmd
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for line := range strings.Lines(commands) {
		command, comment, _ := strings.Cut(strings.TrimSpace(line), "  #")
		if strings.HasSuffix(command, "-listen") {
			command += " 127.0.0.1"
		}
		command = ports.ReplaceAllString(command, "$1 "+addr)
		code := 0
		_, _ = fmt.Sscanf(comment, " exit code %d", &code)
		var out output
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+programs.ReplaceAllString(command, bin+"/"))
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(command, "-listen") {
			listener = cmd
			for !strings.Contains(out.String(), "listening") && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			continue
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != code {
			t.Errorf("%s: %v\n%s", command, err, out.String())
		}
	}
	if listener == nil {
		return
	}
	if strings.Contains(listener.String(), "doctor") { // which serves until Ctrl-C
		_ = listener.Process.Signal(os.Interrupt)
	}
	if err := listener.Wait(); err != nil {
		t.Errorf("%v: %v", listener, err)
	}
}

// output keeps what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
