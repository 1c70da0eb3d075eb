// Package launch runs the processes of a job on this host: it gives each the environment of package
// job, marks the lines that they write, forwards signals, and ends all when one fails.
package launch

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"ibverbx/job"
)

// Job is what to run.
type Job struct {
	N              int
	Program        string
	Args           []string
	Stdout, Stderr io.Writer
	Grace          time.Duration      // from asking processes to end to killing them
	Plain          bool               // lines are not marked
	Continue       bool               // a failure ends no other process
	Report         func(words string) // reports at once what has failed
}

// FailedError is how the first failed process has ended, or the one that the job names.
type FailedError struct {
	Rank int
	PID  int
	Code int // its exit code; 128 plus the signal's number if one has killed it
	How  string
}

// Error names the process.
func (e *FailedError) Error() string {
	return fmt.Sprintf("rank %d (pid %d): %s", e.Rank, e.PID, e.How)
}

// ending are the signals that end the job.
//
//nolint:gochecknoglobals // a constant
var ending = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// takeSignals takes the signals of a job, until stop is called.
func takeSignals() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, slices.Concat(ending, forwarded)...)
	// A pipe whose reader has gone is then an error of a write, and does not end this process.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return c, func() { signal.Stop(c); signal.Stop(pipe) }
}

// ended is a process that has ended.
type ended struct {
	rank int
	err  error
}

// settle is how long to wait for other failures after the first: processes that see a peer die end
// soon, and of several failures one by a signal is the cause.
const settle = 100 * time.Millisecond

// Run runs a job, and forwards signals to it. The error is a [*FailedError] if a process has
// failed. If their output cannot be written, the processes are ended, and the error is why.
func (j *Job) Run() error {
	env, name, err := environment(j.N)
	if err != nil {
		return err
	}
	reports, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = reports.Close() }() // nothing is lost
	env = append(env, job.EnvReport+"="+reports.LocalAddr().String())
	r := &running{job: j, verdicts: make(chan verdict, 1), absences: make(chan verdict, 1),
		ended: make(chan ended, j.N), lost: make(chan error, 2)}
	for i, w := range []io.Writer{j.Stdout, j.Stderr} {
		r.sinks[i].w, r.sinks[i].lost = w, func(err error) { r.lost <- err }
	}
	go r.listen(reports, name)
	var stop func()
	r.signals, stop = takeSignals()
	defer stop()
	// The processes end with the thread that has started them, so it must outlive them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer r.flush()
	for rank := range j.N {
		if err := r.start(rank, append(env, job.EnvRank+"="+strconv.Itoa(rank))); err != nil {
			r.kill()
			for range r.live {
				<-r.ended
			}
			return fmt.Errorf("rank %d: %w%s", rank, err, limitText(err))
		}
	}
	return r.supervise()
}

// limitText names the limit that keeps a process from being started.
func limitText(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return ": each process takes three descriptors here: raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.EAGAIN):
		return ": start fewer, or raise the limit of processes (ulimit -u; pids.max of the cgroup)"
	}
	return ""
}

// environment returns the environment of all processes, without the rank, and the name of the job.
func environment(n int) (env []string, name string, err error) {
	// The port is free until rank 0 takes it. If another program takes it first, rank 0 reports
	// that.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, "", err
	}
	name = rand.Text()
	return append(os.Environ(), job.EnvSize+"="+strconv.Itoa(n), job.EnvAddress+"="+address,
		job.EnvJob+"="+name), name, nil
}

// running is the processes of a job.
type running struct {
	job     *Job
	cmds    []*exec.Cmd // by rank
	outputs []*lines
	live    int
	ended   chan ended
	signals <-chan os.Signal
	failed  []*FailedError // in their order, until they are reported
	// verdicts has why the job has failed, as reported by the first process that learns it;
	// absences has which ranks have not joined, each time that another reports it.
	verdicts chan verdict
	absences chan verdict
	well     []int      // the ranks that have ended with 0
	sinks    [2]sink    // Stdout and Stderr
	lost     chan error // why one of them can no longer be written
}

// start starts a process.
func (r *running) start(rank int, env []string) error {
	cmd := exec.Command(r.job.Program, r.job.Args...)
	cmd.Env = env[:len(env):len(env)]
	mark := ""
	if !r.job.Plain {
		mark = fmt.Sprintf("[%d] ", rank)
	}
	out, errs := &lines{w: &r.sinks[0], mark: mark}, &lines{w: &r.sinks[1], mark: mark}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.WaitDelay = time.Second // for its children to close its output
	ownGroup(cmd)
	endWithThis(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmds, r.outputs = append(r.cmds, cmd), append(r.outputs, out, errs)
	r.live++
	go func() { r.ended <- ended{rank, cmd.Wait()} }()
	return nil
}

// supervise waits until all have ended.
func (r *running) supervise() error {
	var first *FailedError
	var output error
	var settled, grace, last <-chan time.Time
	done := make([]bool, r.job.N)
	end := func() {
		if grace == nil {
			send(syscall.SIGTERM, r.cmds[1:])
			last, grace = time.After(settle), time.After(r.job.Grace)
		}
	}
	for r.live > 0 || settled != nil {
		select {
		case e := <-r.ended:
			r.live--
			done[e.rank] = true
			select {
			case <-r.absences: // it may be older than what this process did last
			default:
			}
			failed := r.failure(e)
			if failed == nil {
				r.well = append(r.well, e.rank)
			}
			switch {
			case failed == nil || output != nil || first != nil && grace != nil:
				continue // it was ended
			case first != nil:
				r.job.Report(failed.Error())
				continue
			}
			if r.failed = append(r.failed, failed); len(r.failed) == 1 {
				settled = time.After(settle)
			}
		case v := <-r.absences:
			for _, rank := range v.Missing {
				if rank >= 0 && rank < len(done) && done[rank] && r.failed == nil && grace == nil {
					r.failed = []*FailedError{{rank, r.cmds[rank].Process.Pid, 1,
						"ended without an error and without joining the job, in which others wait for it"}}
					settled = time.After(settle)
				}
			}
		case <-settled:
			settled = nil
			first = r.report()
			if r.live > 0 && !r.job.Continue {
				end()
			}
		case <-last:
			// Rank 0 comes last: the others would mistake its end for the cause.
			send(syscall.SIGTERM, r.cmds[:1])
		case err := <-r.lost:
			output = fmt.Errorf("the output cannot be written, so the processes were ended: %w", err)
			end()
		case s := <-r.signals:
			switch {
			case !slices.Contains(ending, s):
				send(s, r.cmds)
			case grace == nil:
				send(s, r.cmds)
				grace = time.After(r.job.Grace)
			default:
				r.kill() // it was reported before
			}
		case <-grace:
			r.kill()
		}
	}
	r.kill() // children that processes have left behind
	switch {
	case output != nil:
		return output
	case first == nil:
		return nil
	}
	return first
}

// report reports what has failed, and returns the failure that gives the exit code.
func (r *running) report() *FailedError {
	first, words := r.blame()
	switch {
	case r.live == 0:
	case r.job.Continue:
		words += "; the others go on"
	default:
		words += "; the others are ended"
	}
	r.job.Report(words)
	return first
}

// blame returns the failure that is the cause, and words for it: that of the process that the job
// names, or one by a signal, or the first. A process that the job names may still run.
func (r *running) blame() (first *FailedError, words string) {
	first = r.failed[0]
	if i := slices.IndexFunc(r.failed, func(f *FailedError) bool { return f.Code > 128 }); i >= 0 {
		first = r.failed[i]
	}
	var v verdict
	select {
	case v = <-r.verdicts:
	case <-time.After(settle / 4): // listen may not have been woken
		return first, first.Error()
	}
	words = v.Text
	if rank := v.Rank; rank != nil && *rank >= 0 && *rank < len(r.cmds) {
		i := slices.IndexFunc(r.failed, func(f *FailedError) bool { return f.Rank == *rank })
		// Its end explains more than the wait of the others, but not if it gave up for one killed.
		if i >= 0 && v.Code != "absent" && (v.Code != "failed" || first.Code <= 128) {
			return r.failed[i], r.failed[i].Error()
		}
		if slices.Contains(r.well, *rank) { // then its death is no riddle
			v.Text = "ended with exit status 0 without leaving the job (job.Close)"
		}
		words = fmt.Sprintf("rank %d (pid %d): %s", *rank, r.cmds[*rank].Process.Pid, v.Text)
	}
	return first, fmt.Sprintf("%s; the first to end is %v", words, first)
}

// verdict is why the job has failed, in the form in which package job reports it to its launcher.
type verdict struct {
	Job  string `json:"job"`
	Rank *int   `json:"rank"` // nil if it is not one process alone
	Code string `json:"code"` // package job's name of the kind of failure
	Text string `json:"text"`

	Missing []int `json:"missing"` // the job has not failed: it waits for these ranks
}

// listen receives why the named job has failed, until the socket is closed.
func (r *running) listen(reports net.PacketConn, name string) {
	buf := make([]byte, maxLine)
	for {
		n, _, err := reports.ReadFrom(buf)
		if err != nil {
			return
		}
		var v verdict
		if json.Unmarshal(buf[:n], &v) == nil && v.Job == name {
			to := r.verdicts
			if v.Missing != nil {
				to = r.absences
			}
			select {
			case to <- v:
			default: // there is one already
			}
		}
	}
}

// failure returns how a process has failed; nil if it has not.
func (r *running) failure(e ended) *FailedError {
	if e.err == nil || errors.Is(e.err, exec.ErrWaitDelay) {
		return nil
	}
	state := r.cmds[e.rank].ProcessState
	f := &FailedError{Rank: e.rank, PID: r.cmds[e.rank].Process.Pid, Code: 1, How: e.err.Error()}
	if state == nil {
		return f
	}
	f.Code = state.ExitCode()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		f.Code, f.How = 128+int(status.Signal()), "killed by "+state.String()
	}
	return f
}

// send sends a signal to the processes that still live.
func send(s os.Signal, to []*exec.Cmd) {
	for _, cmd := range to {
		sendGroup(cmd, s)
	}
}

// kill ends all remaining processes and their children.
func (r *running) kill() { send(os.Kill, r.cmds) }

// flush writes unfinished lines.
func (r *running) flush() {
	for _, l := range r.outputs {
		l.flush()
	}
}

// maxLine is how much of a line is held until its end arrives, in bytes. Longer lines are written
// in parts, each marked as a line.
const maxLine = 64 << 10

// lines writes lines with a mark, each at once, so that those of several processes do not mix.
type lines struct {
	w    *sink
	mark string // empty: nothing is added
	held []byte // of a line without an end
}

// sink takes the lines of several processes. Output that can no longer be written is accepted and
// dropped, because that is no fault of the processes.
type sink struct {
	mu   sync.Mutex
	w    io.Writer
	err  error
	lost func(error) // receives the first error
}

// Write takes any part of the output. It is called by one goroutine, and never fails.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		end := bytes.IndexByte(b, '\n') + 1
		if end == 0 {
			l.held = append(l.held, b...)
			if len(l.held) >= maxLine {
				l.put()
			}
			return n, nil
		}
		l.held = append(l.held, b[:end]...)
		l.put()
		b = b[end:]
	}
}

// put writes the held bytes as a line.
func (l *lines) put() {
	line := append([]byte(l.mark), l.held...)
	if l.mark != "" && line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.held = l.held[:0]
	l.w.write(line)
}

// flush writes an unfinished last line.
func (l *lines) flush() {
	if len(l.held) > 0 {
		l.put()
	}
}

func (s *sink) write(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if _, s.err = s.w.Write(line); s.err != nil {
		s.lost(s.err)
	}
}
