package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"strings"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// Why a job ends, or a call fails. Test with errors.Is.
var (
	// ErrNoJob: the job of this process is unknown. The error says what was found, and what is
	// missing.
	ErrNoJob = errors.New("no job found")
	// ErrDied: a process of the job has died, or does not answer. A [*RankError] says which.
	ErrDied = errors.New("the process has died")
	// ErrLeft: a process of the job has closed it and cannot take part in this call. A [*RankError]
	// says which.
	ErrLeft = errors.New("the process has left the job")
	// ErrFailed: a process of the job has given up; a [*RankError] says which, and why in its own
	// words.
	ErrFailed = errors.New("the process has given up")
	// ErrMismatch: the processes disagree about the size of the job, a rank, or the collective
	// call.
	ErrMismatch = errors.New("the processes of the job disagree")
	// ErrAbsent: some processes have not come within Config.Wait, or have not entered a collective
	// call, of this package or of shmem ([Job.Fail]), before the deadline of another one's context.
	// The error names their ranks; for one process that has joined it is a [*RankError].
	ErrAbsent = errors.New("not all processes of the job have come")
	// ErrFull: the store has no room for a value.
	ErrFull = errors.New("the store is full")
	// ErrClosed: this process has closed the job.
	ErrClosed = errors.New("the job is closed")
)

// Process is a process of the job.
type Process struct {
	Rank int    `json:"rank"`
	Host string `json:"host"` // its name of its host, or the address if that is not known
	PID  int    `json:"pid"`  // 0 if not known
}

// String names it: "rank 2 (node7, pid 4242)".
func (p Process) String() string {
	var known []string
	if p.Host != "" {
		known = append(known, p.Host)
	}
	if p.PID != 0 {
		known = append(known, fmt.Sprintf("pid %d", p.PID))
	}
	if known == nil {
		return fmt.Sprintf("rank %d", p.Rank)
	}
	return fmt.Sprintf("rank %d (%s)", p.Rank, strings.Join(known, ", "))
}

// RankError says which process of the job has ended it.
type RankError struct {
	Process

	Err error // why: ErrDied, ErrLeft, ErrFailed, ErrMismatch, ErrAbsent, with details
}

// Error names the process.
func (e *RankError) Error() string { return e.String() + ": " + e.Err.Error() }

// Unwrap returns why.
func (e *RankError) Unwrap() error { return e.Err }

// abandoned is the error of a collective call that was given up: rank 0's verdict, whose text has
// the reason, and the reason itself for errors.Is.
type abandoned struct{ verdict, err error }

func (e *abandoned) Error() string   { return e.verdict.Error() }
func (e *abandoned) Unwrap() []error { return []error{e.verdict, e.err} }

// verdict is why the job has failed, as it travels: a RankError or, without a Process, another
// error.
type verdict struct {
	*Process

	Code string `json:"code"`
	Text string `json:"text"`
}

// codeAbsent is the name of ErrAbsent. A verdict with it may name no single process.
const codeAbsent = "absent"

// codes are the sentinels by their names in verdicts.
func codes() map[string]error {
	return map[string]error{"died": ErrDied, "left": ErrLeft, "failed": ErrFailed, "mismatch": ErrMismatch,
		codeAbsent: ErrAbsent}
}

// said is an error of a given text and kind, such as one that another process has written.
type said struct {
	text string
	is   error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.is }

// verdictOf returns the verdict that describes an error to the other processes.
func verdictOf(err error) verdict {
	v := verdict{Code: "failed", Text: peertext.Clean(err.Error())}
	var of *RankError
	if errors.As(err, &of) {
		v.Process, v.Text = &of.Process, peertext.Clean(of.Err.Error())
	}
	for code, sentinel := range codes() {
		if errors.Is(err, sentinel) {
			v.Code = code
		}
	}
	return v
}

// err returns the error that a verdict describes.
func (v *verdict) err() error {
	reason := &said{peertext.Clean(v.Text), codes()[v.Code]}
	if reason.is == nil {
		reason.is = ErrFailed
	}
	if v.Process == nil {
		return reason
	}
	v.Host = peertext.Line(v.Host, maxHost)
	return &RankError{*v.Process, reason}
}

// maxHost is the most characters kept of a host's name.
const maxHost = 100

// report is a message to a launcher: why the job has failed, or which ranks have not joined yet.
type report struct {
	verdict

	Job     string `json:"job"`
	Missing []int  `json:"missing,omitempty"`
}

// maxReported is the most characters of a reason in a report.
const maxReported = 500

// tellLauncher tells the launcher, if it listens, why the job has failed, before the program learns
// it and may end.
func tellLauncher(p *Place, why error) {
	r := report{verdict: verdictOf(why), Job: p.Job}
	r.Text = peertext.Line(r.Text, maxReported)
	r.send()
}

// tellMissing tells the launcher which ranks this process waits for: the launcher knows whether
// they can still come.
func tellMissing(p *Place, ranks ...int) {
	r := report{Job: p.Job, Missing: ranks}
	r.send()
}

// send sends the report, if a launcher listens. It is one datagram on the host, and nothing waits
// for it.
func (r *report) send() {
	to, err := netip.ParseAddrPort(os.Getenv(EnvReport)) // a name would have to be looked up
	if err != nil {
		return
	}
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
		_, _ = c.Write(text)
		_ = c.Close()
	}
}

// refused counts and describes connections that did not become a process of the job. The server's
// mu guards it.
type refused struct {
	count int    // all of them
	last  string // the last one that was turned away, and why
}

// maxReason is the most characters kept of a reason.
const maxReason = 300

// turnAway counts a connection that is not from a process of this job, and logs it: the first, the
// second, the fourth and so on.
func (s *server) turnAway(remote net.Addr, why error) {
	if s.ctx.Err() != nil {
		return
	}
	reason := peertext.Line(why.Error(), maxReason)
	s.mu.Lock()
	s.refused.count++
	n := s.refused.count
	if !errors.Is(why, rendezvous.ErrGone) { // a connection without a word only checks that somebody listens
		s.refused.last = fmt.Sprintf("%v was turned away: %s", remote, reason)
	}
	s.mu.Unlock()
	if bits.OnesCount(uint(n)) == 1 {
		s.cfg.Logger.Warn("ibverbx: job: rank 0 turned a connection away", "from", remote, "because", reason,
			"turned away", n)
	}
}

// lastRefused adds the connection that was turned away last to a text about missing processes.
func (s *server) lastRefused(missing string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.last == "" {
		return missing
	}
	return missing + "; " + s.refused.last
}
