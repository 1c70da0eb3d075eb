package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

const (
	// defaultWidth is what sentences are wrapped to where there is no terminal: a little wider than
	// the table.
	defaultWidth = 110
	leastWidth   = 60
	// labelWidth is how far sentences are indented behind their label.
	labelWidth = 18
)

// setback describes a failure: what was injected, what each end saw, what became of all that was
// accepted, whether the data is there, and how the run continued.
func (t *perfTable) setback(s *bench.Setback) {
	f := s.Failure
	for _, fault := range f.Faults {
		t.fault(fault)
	}
	for i := range f.Ends {
		t.end(&f.Ends[i])
	}
	t.ledgers(f)
	t.data(f)
	if r := s.Recovery; r != nil {
		t.say("after the fault", r.What+" in "+took(r)+": "+strings.Join(r.NICs["a"],
			", ")+" with "+strings.Join(r.NICs["b"], ", ")+
			", "+count(r.Rails, "queue pair")+"; then "+thousands(r.Messages)+" messages"+t.compared(r))
	}
}

// took is how long a recovery took.
func took(r *bench.Recovery) string {
	ms, digits := r.Seconds*1e3, 1
	if ms < 1 {
		digits = 3
	}
	s := fmt.Sprintf("%.*f ms", digits, ms)
	if r.Waited > 0 {
		s += fmt.Sprintf(" after a wait of %v", time.Duration(r.Waited).Round(time.Millisecond))
	}
	return s
}

func (t *perfTable) compared(r *bench.Recovery) string {
	switch {
	case r.Messages == 0:
		return ""
	case r.Verified >= r.Messages:
		return ", every byte verified"
	}
	return ", NOT verified"
}

// fault says what became of a fault.
func (t *perfTable) fault(f bench.FaultReport) {
	text := f.What
	if f.Hits > 0 {
		text += ": " + strconv.Itoa(f.Hits)
	}
	switch {
	case f.Struck && f.Fault.At > 0:
		text += fmt.Sprintf("; at %v of the column", f.Fault.At)
	case f.Struck:
		text += fmt.Sprintf("; after message %d of the column", f.Fault.Message)
	}
	t.say("fault", f.Fault.String()+": "+text)
}

// described says whether a setback has described a fault.
func described(setbacks []bench.Setback, f bench.FaultReport) bool {
	for _, s := range setbacks {
		for _, of := range s.Failure.Faults {
			if of.Fault == f.Fault {
				return true
			}
		}
	}
	return false
}

// end describes the first error of an end.
func (t *perfTable) end(e *bench.EndFailure) {
	f := e.Error
	if f == nil {
		text := "noticed nothing: it had nothing outstanding that could fail"
		if e.Sends.Flushed+e.Recvs.Flushed > 0 {
			text = "had no error of its own yet: what was outstanding was flushed when both ends were stopped"
		}
		t.say("end "+e.End, text)
		return
	}
	where := ""
	if f.Rail >= 0 {
		where = fmt.Sprintf("on rail %d", f.Rail)
		if f.Notify {
			where = "on the notify QP"
		}
		where += fmt.Sprintf(" (%s qp %d)", f.Device, f.QPNum)
	}
	t.say("end "+e.End, strings.Join(nonEmpty("first error", where, concerned(f), fragmentOf(f),
		addresses(f)), ", "))
	words := f.Words
	if f.Status != "" {
		words = f.Status + ": " + words
	}
	if f.Vendor != 0 {
		words += fmt.Sprintf(" (vendor code 0x%x)", f.Vendor)
	}
	t.say("", words)
	if f.Advice != "" {
		t.say("", "what to do: "+f.Advice)
	}
}

func nonEmpty(list ...string) (kept []string) {
	for _, s := range list {
		if s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

// ofRound says how messages are numbered that failed:
// those of the faults are numbered over the column.
const ofRound = " of the round that failed"

// concerned says which request failed, or which receive.
func concerned(f *bench.FirstError) string {
	switch {
	case f.Message < 0 && f.Part == "credit":
		return "a receive kept for messages of the peer"
	case f.Message < 0 && f.Part == "watch":
		return "a receive kept to notice failures"
	case f.Message < 0:
		return ""
	case f.Opcode != "":
		return fmt.Sprintf("%s of message %d"+ofRound, f.Opcode, f.Message)
	case f.Recv:
		return fmt.Sprintf("receive of message %d"+ofRound, f.Message)
	}
	return fmt.Sprintf("send of message %d"+ofRound, f.Message)
}

// fragmentOf says which part of the request failed.
func fragmentOf(f *bench.FirstError) string {
	switch {
	case f.Part == "notification" || f.Part == "marker" || f.Part == "immediate":
		return "its " + f.Part
	case f.Part != "fragment" || f.Fragments == 1:
		return ""
	case f.Fragment < 0:
		return "one of its fragments"
	case f.Fragments == 0:
		return fmt.Sprintf("fragment %d", f.Fragment+1)
	}
	return fmt.Sprintf("fragment %d of %d", f.Fragment+1, f.Fragments)
}

// addresses says which memory was concerned.
func addresses(f *bench.FirstError) string {
	if f.Length == 0 {
		return ""
	}
	s := bytesOf(f.Length)
	if f.Whole {
		s = "the whole request of " + s
	}
	if f.Local != 0 {
		s += fmt.Sprintf(", local 0x%x", f.Local)
	}
	if f.Remote != 0 {
		s += fmt.Sprintf(", remote 0x%x", f.Remote)
	}
	return s
}

// ledgers says what became of all that was accepted since the ends were connected.
func (t *perfTable) ledgers(f *bench.Failure) {
	label, whole := "completions", true
	for i := range f.Ends {
		e := &f.Ends[i]
		for _, l := range []struct {
			what string
			of   *layers.Outcomes
		}{{"sends", &e.Sends}, {"receives", &e.Recvs}} {
			whole = whole && l.of.Accepted == l.of.Completed()
			if l.of.Accepted == 0 && l.of.Completed() == 0 {
				continue
			}
			is := "="
			if l.of.Accepted != l.of.Completed() {
				is = "BUT"
			}
			t.say(label, fmt.Sprintf("end %s %s: %s accepted %s %s successful + %s failed + %s flushed",
				e.End, l.what,
				thousands(int(l.of.Accepted)), is, thousands(int(l.of.Succeeded)),
				thousands(int(l.of.Failed)), thousands(int(l.of.Flushed))))
			label = ""
		}
	}
	if whole {
		t.say(label, "one for each request accepted since the ends were connected, in the order of posting")
	}
}

// data says whether what was acknowledged and notified is there.
func (t *perfTable) data(f *bench.Failure) {
	if !f.Kept {
		t.say("BROKEN", f.Broken)
		return
	}
	text := fmt.Sprintf("of the round that failed %s messages were acknowledged and %s notified",
		thousands(f.Acknowledged), thousands(f.Notified))
	switch {
	case f.Acknowledged+f.Notified == 0:
		text = "no message of the round that failed was acknowledged or notified, so none had to be there"
	case f.Compared == 0:
		text += ": NOT verified"
	default:
		text += fmt.Sprintf(": all of them are there, every byte of %s compared", thousands(f.Compared))
	}
	t.say("data", text)
}

// causes says why a cell could not continue.
func (t *perfTable) causes(r *bench.Result, setbacks []bench.Setback) {
	label := "cause"
	for _, line := range strings.Split(r.Error, "\n") {
		if !repeats(setbacks, line) {
			t.say(label, line)
			label = ""
		}
	}
}

// repeats says whether a line of an error is an end's first error, which stands above already.
func repeats(setbacks []bench.Setback, line string) bool {
	for _, s := range setbacks {
		for _, e := range s.Failure.Ends {
			if e.Error != nil && line == "end "+e.End+": "+e.Error.Text || line == s.Failure.Broken {
				return true
			}
		}
	}
	return false
}

// say writes a sentence behind its label, wrapped and indented.
func (t *perfTable) say(label, text string) {
	for i, line := range wrap(text, max(t.width, leastWidth)-4-labelWidth) {
		if i > 0 {
			label = ""
		}
		t.printf("    %-*s%s\n", labelWidth, label, line)
	}
}

// wrap breaks text at spaces into lines of at most width runes, where words allow. Control
// characters of external text are escaped.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		word = harmless(word)
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// thousands writes a number with a comma between thousands.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// recoveries counts the failures after which a run continued.
func recoveries(r *bench.Report) (n int) {
	for i := range r.Results {
		for _, s := range r.Results[i].Setbacks() {
			if s.Recovery != nil {
				n++
			}
		}
	}
	return n
}

// failedOver says which queue pairs each end has lost without a request failing, and how much work
// others have repeated.
func (t *perfTable) failedOver(r *bench.Result) {
	label := "failover"
	for i, of := range []*bench.QPStats{&r.Stats.A, &r.Stats.B} {
		n, where := downRails(of)
		lost, back := int(of.RailsLost), int(of.RailsBack)
		if n+lost+back == 0 {
			continue
		}
		text := fmt.Sprintf("end %c lost %s, %d came back, and %s posted again on others", 'a'+i,
			count(lost, "queue pair"), back, count(int(of.Reposted), "work request"))
		switch {
		case lost+back == 0:
			text = fmt.Sprintf("end %c is without queue pairs that it lost before: %s", 'a'+i, where)
		case n > 0:
			text += "; out of service: " + where
		}
		t.say(label, text)
		label = ""
	}
	for i := range r.Losses {
		l := &r.Losses[i]
		t.say("", fmt.Sprintf("%s lost by end %s, %d ×: %s", l.Device, l.End, l.Times, l.Cause))
	}
	if label == "" && r.Failure == nil && !r.Failed {
		t.say("", "no request failed")
	}
}

// downRails says how many rails of an end are out of service, and which, by their NIC.
func downRails(s *bench.QPStats) (n int, where string) {
	var nics []string
	rails := map[string][]string{}
	for k := range s.Rails {
		rail := &s.Rails[k]
		if !rail.Down {
			continue
		}
		n++
		if rails[rail.Device] == nil {
			nics = append(nics, rail.Device)
		}
		rails[rail.Device] = append(rails[rail.Device], nameOf(k, rail))
	}
	for i, nic := range nics {
		nics[i] = nic + ": " + strings.Join(rails[nic], ", ")
	}
	return n, strings.Join(nics, "; ")
}

// nameOf is what rail k is called.
func nameOf(k int, r *ibverbx.RailStats) string {
	switch {
	case r.Notify:
		return "notify"
	case r.Spare:
		return "spare"
	}
	return strconv.Itoa(k)
}
