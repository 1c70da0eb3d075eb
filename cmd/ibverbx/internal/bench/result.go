package bench

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
	"ibverbx/trace"
)

// Document has the fields of all documents of measurements.
type Document struct {
	Tool        string  `json:"tool"`
	Version     string  `json:"version"`
	Note        string  `json:"note,omitempty"` // of the program, on what it has chosen itself
	Machine     Machine `json:"machine"`
	Interrupted bool    `json:"interrupted"`
	Seconds     float64 `json:"seconds"` // the whole run, the untimed parts included
	OK          bool    `json:"ok"`
	Error       string  `json:"error,omitempty"`
}

// End completes the document of a run that began at the given time. err is why it failed.
func (d *Document) End(began time.Time, err error) {
	d.Seconds, d.OK = time.Since(began).Seconds(), err == nil
	if err != nil {
		d.Error, d.Interrupted = err.Error(), d.Interrupted || errors.Is(err, ErrInterrupted)
	}
}

// Report is a run: its parameters, its machine, its results.
type Report struct {
	Document
	Params   *Params  `json:"parameters,omitempty"` // none if nothing was measured
	Peer     *Peer    `json:"peer,omitempty"`       // when another process drives the other end
	Results  []Result `json:"results"`
	Verified int      `json:"verified_messages"` // in all results
	// Traces has the last steps of each scheme, at both ends; only at the leading end of two.
	Traces []trace.End `json:"-"`
}

// Peer is the process that drives the other end, as it describes itself, and its part in the run.
type Peer struct {
	Address  string   `json:"address"`
	End      string   `json:"end"` // "a", the initiator, which decides what is measured, or "b"
	Version  string   `json:"version"`
	Machine  Machine  `json:"machine"`
	Provider string   `json:"provider"` // of its NICs
	NICs     []string `json:"nics"`     // that it uses
	Own      []string `json:"own_nics"` // that this process uses
}

// Result is a cell: one size with one scheme.
type Result struct {
	Layer        layers.Layer `json:"layer"`
	Op           Op           `json:"op"`
	Mode         Mode         `json:"mode"`
	Size         units.Size   `json:"size_bytes"`
	Scheme       Scheme       `json:"scheme"`
	Rails        int          `json:"rails"`
	Outstanding  int          `json:"outstanding"` // messages at a time in each direction
	Messages     int          `json:"messages"`    // timed, of both directions
	Bytes        uint64       `json:"bytes"`
	Seconds      float64      `json:"seconds"` // timed
	GBPerSecond  float64      `json:"gb_per_second"`
	MsgPerSecond float64      `json:"messages_per_second"`
	// Spread is of the messages a second, or of the medians of latencies in nanoseconds; nil where
	// there are too few samples.
	Spread  *Spread     `json:"spread,omitempty"`
	Latency *Percentile `json:"latency,omitempty"`
	// Verified is how many messages were compared byte for byte, those of the warm-up included.
	Verified int           `json:"verified_messages"`
	Faults   []FaultReport `json:"faults,omitempty"`
	Failed   bool          `json:"failed"`
	Error    string        `json:"error,omitempty"`
	Stats    EndStats      `json:"stats,omitzero"` // of virtual queue pairs
	Repairs  EndRepairs    `json:"nic_repairs,omitzero"`
	// Losses say why queue pairs were lost while others continued.
	Losses   []Loss    `json:"lost_queue_pairs,omitempty"`
	Timeline *Timeline `json:"timeline,omitempty"` // if requested

	Err error `json:"-"`

	samples []float64 // one per turn: messages a second, or medians in nanoseconds
}

// Loss says why queue pairs of a NIC were taken out of service, and how many times.
type Loss struct {
	End    string `json:"end"` // "a" or "b", but not the end of another process
	Device string `json:"device"`
	Cause  string `json:"cause"`
	Times  int    `json:"times"`
}

// Repairs counts the repairs of NICs, the warm-up included, by the names of their counters: those
// of NICs made of UDP sockets, or the hardware counters that the kernel shows. Other NICs have
// none.
type Repairs map[string]uint64

// EndRepairs has the repairs of both ends.
type EndRepairs struct {
	A Repairs `json:"a,omitempty"`
	B Repairs `json:"b,omitempty"`
}

// add adds the difference between two readings.
func (r *Repairs) add(now, before Repairs) {
	for name, n := range now {
		if n <= before[name] {
			continue
		}
		if *r == nil {
			*r = Repairs{}
		}
		(*r)[name] += n - before[name]
	}
}

// Add adds the repairs of another cell.
func (r *EndRepairs) Add(of EndRepairs) {
	r.A.add(of.A, nil)
	r.B.add(of.B, nil)
}

// EndStats has the statistics of both ends' virtual queue pairs in a cell.
type EndStats struct {
	A QPStats `json:"a"`
	B QPStats `json:"b"`
}

// QPStats has the statistics of a virtual queue pair. Its scheme is that of the column: the
// library's has no effect with a single queue pair.
type QPStats struct {
	Scheme Scheme `json:"scheme"`
	ibverbx.Stats
}

// Percentile is the distribution of latencies, in nanoseconds.
type Percentile struct {
	HalfRoundTrip bool    `json:"half_round_trip"`
	Samples       int64   `json:"samples"`
	Min           int64   `json:"min_ns"`
	Mean          float64 `json:"mean_ns"`
	P50           int64   `json:"p50_ns"`
	P90           int64   `json:"p90_ns"`
	P99           int64   `json:"p99_ns"`
	P999          int64   `json:"p99_9_ns"`
	Max           int64   `json:"max_ns"`
}

// finish computes the fields that follow from the others.
func (r *Result) finish() {
	r.Spread = spreadOf(r.samples)
	if r.Seconds > 0 {
		r.MsgPerSecond = float64(r.Messages) / r.Seconds
		if !r.Mode.Series() && len(r.samples) > 0 {
			r.MsgPerSecond = median(r.samples)
		}
		r.GBPerSecond = r.MsgPerSecond * float64(r.Size) / 1e9
	}
	if r.Err != nil {
		r.Failed, r.Error = true, r.Err.Error()
	}
}

// failure returns what failed, and which faults had been injected.
func (r *Result) failure() error {
	var faults []string
	for _, f := range r.Faults {
		if f.Struck {
			faults = append(faults, f.Fault.String())
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s, %v: could not complete after the injected fault %s: %w", r.Scheme, r.Size,
			strings.Join(faults, " and "), r.Err)
	}
	return fmt.Errorf("%s, %v: %w", r.Scheme, r.Size, r.Err)
}

// since subtracts the counters of an earlier snapshot from a later one.
func since(now, before ibverbx.Stats) ibverbx.Stats {
	now.Sends -= before.Sends
	now.SendsCompleted -= before.SendsCompleted
	now.Recvs -= before.Recvs
	now.RecvsCompleted -= before.RecvsCompleted
	now.RingsGrown -= before.RingsGrown
	now.Markers -= before.Markers
	now.BankedTotal -= before.BankedTotal
	now.StaleEvents -= before.StaleEvents
	now.RailsLost -= before.RailsLost
	now.RailsBack -= before.RailsBack
	now.Reposted -= before.Reposted
	for i := range now.Rails {
		n, b := &now.Rails[i], &before.Rails[i]
		n.Bytes -= b.Bytes
		n.Fragments -= b.Fragments
		n.Notifications -= b.Notifications
		n.Errors -= b.Errors
		n.Refused -= b.Refused
	}
	return now
}

// Machine is where a run took place.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"` // used by Go at a time
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Go    string `json:"go"`
	// Clock is the time of a reading of the clock, which every sample of a latency includes.
	Clock int64 `json:"clock_ns"`
}

// ThisMachine describes the machine.
func ThisMachine() Machine {
	return Machine{CPU: cpuModel(), Cores: runtime.GOMAXPROCS(0), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Go: runtime.Version(), Clock: int64(clockCost())}
}

var modelName = regexp.MustCompile(`(?m)^model name\s*:\s*(.*\S)`)

// cpuModel returns the processor's name, or the architecture if the system does not know.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // an error leaves the name empty
	if name := modelName.FindSubmatch(text); name != nil {
		return string(name[1])
	}
	return runtime.GOARCH
}

func clockCost() time.Duration {
	const readings = 1000
	start := time.Now()
	now := start
	for range readings {
		now = time.Now()
	}
	return now.Sub(start) / readings
}
