// Package doctor checks whether this host can use RDMA, and if not what is missing, before a job
// finds out:
//
//	report := doctor.Check(os.DirFS("/"), doctor.Config{})
//	report.WriteText(os.Stdout)
//
// [Check] reads files below /sys, /proc, /dev, /etc and the directories of libraries, as this
// process sees them: in a container that is what counts. It needs no privilege, opens no NIC, sends
// nothing and changes nothing, and takes some milliseconds. Whether packets reach another host, and
// how fast, [Report.Visit] finds out together with [Serve] there.
//
// # What is not checked
//
// What the kernel shows through netlink or verbs only: offloads of interfaces, the fastest rate and
// the largest MTU that a port supports, and PFC, ECN and DSCP where the driver has no files for
// them (NVIDIA's own drivers have). The state of switches. Limits of a sandbox: seccomp, AppArmor,
// the devices of a control group.
//
// A tree of files is input like any other: it may be cut short, contradict itself, or be made up. A
// file that is missing or that makes no sense yields a finding with status [Unknown], or none.
package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
)

// Status is the result of a check.
type Status string

// The results, from the best to the worst.
const (
	OK      Status = "ok"
	Unknown Status = "unknown" // the host does not say
	Warn    Status = "warn"    // works, but slower than it could, or not in every case
	Fail    Status = "fail"    // RDMA does not work, or not on this port
)

// Finding is the result of one check.
type Finding struct {
	Status Status `json:"status"`
	Check  string `json:"check"`          // what was checked: "memlock"
	On     string `json:"on,omitempty"`   // the device and port: "mlx5_0 port 1"
	Seen   string `json:"seen"`           // what was found, and what it means
	From   string `json:"from,omitempty"` // the file that says so
	Mend   string `json:"mend,omitempty"` // what to do, usually a command
}

// Report is the result of all checks.
type Report struct {
	// RDMA says that this host has an RDMA NIC that can be used: with a port that is up, a device
	// node and a library.
	RDMA bool `json:"rdma"`
	// NICs are the NICs that can be used.
	NICs []string `json:"nics"`
	// Uses says what a connection is made over: "shared memory ... with ..., and with others ...".
	Uses     string    `json:"uses"`
	Findings []Finding `json:"findings"`
}

// Config configures a check. The zero value works.
type Config struct {
	// Memory is how many bytes the job registers on this host. 0 means unknown. More than the host
	// has, or than a control group of this process may have, is a failure.
	Memory uint64
	// NeedRDMA makes it a failure that there is no RDMA NIC; otherwise it is a warning, because
	// shared memory and UDP sockets take its place.
	NeedRDMA bool
}

// Failed reports whether a check has failed.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })
}

// Check checks the host whose files are in root, which is os.DirFS("/") for this one.
func Check(root fs.FS, cfg Config) *Report {
	x := &exam{tree: tree{root}, cfg: cfg, Report: &Report{NICs: []string{}, Findings: []Finding{}}}
	devices := x.names("sys/class/infiniband")
	library := x.library(devices)
	for _, name := range devices {
		node := x.node(name)
		if x.device(name) && node && library {
			x.NICs = append(x.NICs, name)
		}
	}
	x.RDMA = len(x.NICs) != 0
	x.missing(devices)
	if cfg.Memory != 0 {
		x.memory()
	}
	if len(devices) != 0 || cfg.Memory != 0 {
		x.memlock(len(devices) != 0)
	}
	if len(devices) != 0 {
		x.cgroup()
		x.gpu()
		x.hugePages()
	}
	x.sharedMemory()
	x.sockets(devices)
	x.bursts()
	x.Uses = "shared memory (provider shm) with processes of this host, and with others "
	if x.RDMA {
		x.Uses += "real NICs (provider rdmacore): " + line(strings.Join(x.NICs, ", "))
	} else {
		x.Uses += "UDP sockets (provider roce), because no RDMA NIC can be used"
	}
	if x.blind() {
		x.add(Finding{Status: Unknown, Check: "files", Seen: "there is neither /proc nor /sys: nothing " +
			"is known of this host", Mend: "run it where both are mounted"})
	}
	return x.Report
}

// exam is a check under way.
type exam struct {
	*Report
	tree
	cfg Config
}

// blind reports whether the tree has nothing of a host that is running.
func (x *exam) blind() bool { return !x.exists("proc") && !x.exists("sys") }

// add adds a finding. Text from files and from another host is made harmless.
func (r *Report) add(f Finding) {
	f.Seen, f.On, f.From, f.Mend = line(f.Seen), line(f.On), line(f.From), line(f.Mend)
	r.Findings = append(r.Findings, f)
}

// WriteJSON writes the report for programs, the worst findings first.
func (r *Report) WriteJSON(w io.Writer) error {
	sorted := *r
	sorted.Findings = r.worstFirst()
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(sorted)
}

// worstFirst returns the findings in the order in which they are shown.
func (r *Report) worstFirst() []Finding {
	rank := map[Status]int{Fail: 0, Warn: 1, Unknown: 2, OK: 3}
	list := slices.Clone(r.Findings)
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(rank[a.Status], rank[b.Status]) })
	return list
}

// counted writes a number of things.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// WriteText writes the report for people: first what a connection is made over, then what is wrong,
// the worst first, each with what to do, and then what is right.
func (r *Report) WriteText(w io.Writer) error {
	counts := map[Status]int{}
	for _, f := range r.Findings {
		counts[f.Status]++
	}
	if _, err := fmt.Fprintf(w, "ibverbx uses %s.\n%d ok, %d unknown, %s, %s\n\n", r.Uses, counts[OK],
		counts[Unknown], counted(counts[Warn], "warning"), counted(counts[Fail], "failure")); err != nil {
		return err
	}
	cells := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.worstFirst() {
		seen := f.Seen
		if f.From != "" {
			seen += " (" + f.From + ")"
		}
		_, _ = fmt.Fprintf(cells, "%s\t%s\t%s\n", strings.ToUpper(string(f.Status)),
			strings.TrimSpace(f.Check+" "+f.On), seen) // Flush reports errors
		if f.Mend != "" {
			_, _ = fmt.Fprintf(cells, "\t\tdo: %s\n", f.Mend)
		}
	}
	return cells.Flush()
}
