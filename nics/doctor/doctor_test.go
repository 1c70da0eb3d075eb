package doctor_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"ibverbx/nics/doctor"
)

var update = flag.Bool("update", false, "rewrite the reports in testdata")

// owner has the fields of a file's owner, as those of every unix are called.
type owner struct{ Uid, Gid uint32 } //nolint:revive // the names of the system

// record reads a recorded tree: "-- path --" on a line of its own, and the file's text below.
// Behind the path may stand "hex", or the mode, or the mode, the user and the group.
func record(text string) fstest.MapFS {
	tree, at := fstest.MapFS{}, (*fstest.MapFile)(nil)
	var binary []*fstest.MapFile
	for l := range strings.Lines(text) {
		name, begins := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "-- ")
		name, ends := strings.CutSuffix(name, " --")
		if !begins || !ends {
			if at != nil {
				at.Data = append(at.Data, l...)
			}
			continue
		}
		name, mode, _ := strings.Cut(name, " ")
		at = &fstest.MapFile{Mode: 0o444}
		var by owner
		if n, _ := fmt.Sscanf(mode, "%o %d %d", &at.Mode, &by.Uid, &by.Gid); n == 3 {
			at.Sys = &by
		}
		if at.Mode &= fs.ModePerm; mode == "hex" {
			at.Mode, binary = 0o400, append(binary, at)
		}
		tree[name] = at
	}
	for _, f := range binary {
		f.Data, _ = hex.DecodeString(strings.Join(strings.Fields(string(f.Data)), ""))
	}
	return tree
}

func host(t *testing.T, name string) fstest.MapFS {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return record(string(text))
}

// What a person reads of each recorded host stands beside it. The first screen says what is used.
func TestReports(t *testing.T) {
	for _, name := range []string{"none", "mlx5-infiniband", "mlx5-ethernet", "rxe"} {
		var out bytes.Buffer
		if err := doctor.Check(host(t, name), doctor.Config{}).WriteText(&out); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".report")
		if *update {
			if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, &out, want)
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); lines > 24 {
			t.Errorf("%s: %d lines are more than a screen", name, lines)
		}
	}
}

// A fault of a host that was whole is found, named, and comes with what to do. Nothing else is said
// to have failed. testdata/faults.txt has the faults.
func TestFaults(t *testing.T) {
	text, err := os.ReadFile("testdata/faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	faults := strings.Split(string(text), "\n== ")[1:]
	if len(faults) < 50 {
		t.Errorf("%d faults found", len(faults))
	}
	for _, fault := range faults {
		title, rest, _ := strings.Cut(fault, "\n")
		name, base, _ := strings.Cut(title, ": ")
		t.Run(name, func(t *testing.T) { checkFault(t, host(t, base), rest) })
	}
}

// checkFault checks a host with a fault. It is described by lines of expectations, and by files.
func checkFault(t *testing.T, tree fstest.MapFS, text string) {
	head, _, _ := strings.Cut("\n"+text, "\n-- ")
	lines := strings.Split(head, "\n")
	has := func(line string) bool { return slices.Contains(lines, line) }
	var cfg doctor.Config
	if cfg.NeedRDMA = has("need"); has("memory") {
		cfg.Memory = 1 << 30
	}
	for name, file := range record(text) {
		if delete(tree, name); len(file.Data) != 0 {
			tree[name] = file
		}
	}
	r := doctor.Check(tree, cfg)

	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "want ") })
	want := strings.Split(strings.TrimPrefix(lines[at], "want "), "|")
	for i := range want {
		want[i] = strings.TrimSpace(want[i])
	}
	found := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
		return string(f.Status) == want[0] && f.Check == want[1] && f.On == want[2] &&
			strings.Contains(f.Seen, want[3]) && strings.Contains(f.Mend, want[4])
	})
	if !found {
		t.Errorf("no %q in %+v", want, r.Findings)
	}
	for _, f := range r.Findings {
		if f.Status == doctor.Fail && f.Check != want[1] {
			t.Errorf("also failed: %+v", f)
		}
	}
	fails := want[0] == string(doctor.Fail)
	if r.RDMA != has("rdma") || r.RDMA != (len(r.NICs) != 0) || r.Failed() != fails {
		t.Errorf("RDMA %v, failed %v, NICs %q", r.RDMA, r.Failed(), r.NICs)
	}
}

// The worst stands first, for programs too, and one warning is one.
func TestOrder(t *testing.T) {
	r := doctor.Check(host(t, "rxe"), doctor.Config{NeedRDMA: true})
	r.Findings = append(r.Findings, doctor.Finding{Status: doctor.Fail, Check: "last", Seen: "x"})
	var text, doc bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&doc)); err != nil {
		t.Fatal(err)
	}
	var read doctor.Report
	if err := json.Unmarshal(doc.Bytes(), &read); err != nil || len(read.Findings) != len(r.Findings) ||
		read.Findings[0].Check != "last" || read.Findings[1].Status != doctor.Warn {
		t.Errorf("%v: %s", err, &doc)
	}
	if !strings.Contains(text.String(), "1 warning, 1 failure\n") {
		t.Error(&text)
	}
}

// This host can be checked, whatever it is, in less than the five seconds that a person waits.
func TestThisHost(t *testing.T) {
	began := time.Now()
	r := doctor.Check(os.DirFS("/"), doctor.Config{})
	if took := time.Since(began); took > 5*time.Second || len(r.Findings) == 0 || r.Uses == "" {
		t.Errorf("%v: %+v", took, r)
	}
}

// Of a host whose files cannot be read nothing is said to be in order, and that is said.
func TestNoFiles(t *testing.T) {
	r := doctor.Check(fstest.MapFS{}, doctor.Config{Memory: 1 << 30})
	unknown := 0
	for _, f := range r.Findings {
		switch f.Status {
		case doctor.OK, doctor.Fail:
			t.Errorf("%+v", f)
		case doctor.Unknown:
			unknown++
		}
	}
	if unknown != 5 { // no files, NICs, memory, memlock, UDP port
		t.Errorf("%d unknown: %+v", unknown, r.Findings)
	}
}

// Files of the loader that include each other are read once each: 20 of 20 lines were millions of
// reads otherwise. What the last of them names is found.
func TestIncludesOfEachOther(t *testing.T) {
	const files = 20
	tree, reads := host(t, "none"), 0
	tree["etc/ld.so.conf"] = &fstest.MapFile{Data: []byte("include d/*\n")}
	for i := range files {
		text := strings.Repeat("include *\n", files)
		if i == files-1 {
			text += "/opt/ofed/lib\n"
		}
		tree[fmt.Sprint("etc/d/", i)] = &fstest.MapFile{Data: []byte(text)}
	}
	tree["opt/ofed/lib/libibverbs.so.1"] = &fstest.MapFile{}
	r := doctor.Check(counting{tree, &reads}, doctor.Config{})
	if reads > 1000 || !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
		return f.Check == "libibverbs" && f.Seen == "/opt/ofed/lib/libibverbs.so.1"
	}) {
		t.Errorf("%d files opened: %+v", reads, r.Findings)
	}
}

// counting counts what is opened, and ends a test that opens far too much.
type counting struct {
	fstest.MapFS
	opened *int
}

func (c counting) Open(name string) (fs.File, error) {
	if *c.opened++; *c.opened > 100_000 {
		panic("more than 100,000 files are opened")
	}
	return c.MapFS.Open(name)
}

// FuzzCheck checks trees of any content: each finding has a status, a name and something seen, on
// one line of printable text; what can be used was seen as a port that is up.
func FuzzCheck(f *testing.F) {
	for _, name := range []string{"none", "mlx5-infiniband", "mlx5-ethernet", "rxe"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("-- sys/class/infiniband/a/ports/1/state --\n4: \x1b[2J\n" +
		"-- sys/class/infiniband/a/ports/x/state --\n")
	f.Add("-- proc/self/cgroup --\n0::/../../../etc\n-- proc/self/limits --\nMax locked memory  -1\n")
	f.Add("-- sys/class/infiniband/a/ports/1/gids/99999999999 --\n::1\n" +
		"-- sys/class/infiniband/a/ports/-1/x --\n")
	statuses := []doctor.Status{doctor.OK, doctor.Unknown, doctor.Warn, doctor.Fail}
	f.Fuzz(func(t *testing.T, text string) {
		r := doctor.Check(record(text), doctor.Config{})
		for _, f := range r.Findings {
			if !slices.Contains(statuses, f.Status) || f.Check == "" || f.Seen == "" ||
				strings.ContainsAny(fmt.Sprint(f.On, f.Seen, f.From, f.Mend), "\n\r\x1b\x00") {
				t.Errorf("%+v", f)
			}
		}
		up := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == "port" && f.Status == doctor.OK
		})
		if r.RDMA && !up || r.RDMA != (len(r.NICs) != 0) {
			t.Errorf("usable: %+v", r)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}
