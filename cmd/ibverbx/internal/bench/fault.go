package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a deliberate failure in a run: a kind, a place and a time. Its text is
// KIND[@KEY=VALUE,...], such as nic-down@nic=1,msg=100.
type Fault struct {
	Kind    string
	End     string        // "a", the initiator, or "b"
	NIC     int           // of that end, from 0
	Rail    int           // queue pair of the virtual queue pair, from 0
	Message int           // strikes after so many messages of the column were posted
	At      time.Duration // or, if not 0, after so much measured time of the column
	For     time.Duration // how long it lasts; 0 is forever
	By      int           // how many times slower something gets

	text string
}

// String returns the fault as it was written.
func (f Fault) String() string { return f.text }

// MarshalJSON writes the text.
func (f Fault) MarshalJSON() ([]byte, error) { return json.Marshal(f.text) }

// UnmarshalText reads a fault from a flag.
func (f *Fault) UnmarshalText(text []byte) (err error) {
	*f, err = ParseFault(string(text))
	return err
}

// faultKind is a row of the table of faults.
type faultKind struct {
	name, help string
	keys       string // that it understands, beside msg and at, with their defaults
	strike     func(c *pair, f *Fault) (*struck, error)
}

// faultKinds is the table of faults. A new one is a row here and a function in inject.go that
// injects it and returns how to remove it; help, completion, the checks of keys and the time line
// follow from the row.
func faultKinds() []faultKind {
	return []faultKind{
		{"kill-qp", "a queue pair goes to ERR", "rail=0 end", killQP},
		{"nic-down", "a NIC fails permanently, or works again after for=", "nic=0 end for", nicDown},
		{"link-down", "a NIC's link goes down permanently", "nic=0 end", linkDown},
		{"link-flap", "a NIC's link goes down, and up again after for=", "nic=0 end for=20ms", linkDown},
		{"slow", "a NIC and its peer become by= times slower", "nic=0 by=10 for", slowNIC},
	}
}

// all returns the keys that it understands, with their defaults.
func (k *faultKind) all() (names, usual []string) {
	for _, key := range strings.Fields(k.keys + " msg at") {
		name, value, _ := strings.Cut(key, "=")
		names, usual = append(names, name), append(usual, value)
	}
	return names, usual
}

func (f *Fault) kind() *faultKind {
	for _, k := range faultKinds() {
		if k.name == f.Kind {
			return &k
		}
	}
	return nil
}

// FaultHelp lists the kinds of faults, one per line.
func FaultHelp() string {
	var b strings.Builder
	for _, k := range faultKinds() {
		keys, usual := k.all()
		for i, holds := range usual {
			if keys[i] == "for" {
				holds = cmp.Or(holds, "permanently")
			}
			if holds != "" {
				keys[i] += " [" + holds + "]"
			}
		}
		fmt.Fprintf(&b, "  %-14s %s\n%17skeys: %s\n", k.name, k.help, "", strings.Join(keys, ", "))
	}
	return b.String()
}

// FaultNames lists the kinds of faults.
func FaultNames() (names []string) {
	for _, k := range faultKinds() {
		names = append(names, k.name)
	}
	return names
}

// mostBy is the largest factor by which a NIC becomes slower.
const mostBy = 1000

// ParseFault reads a fault.
func ParseFault(text string) (Fault, error) {
	name, where, located := strings.Cut(text, "@")
	f := Fault{Kind: name, End: "a", NIC: -1, Rail: -1, Message: 100, text: text}
	k := f.kind()
	if k == nil {
		return f, fmt.Errorf("fault %q: have %s", name, strings.Join(FaultNames(), ", "))
	}
	keys, usual := k.all()
	for i, value := range usual {
		if value == "" {
			continue
		}
		if err := f.set(keys[i], value); err != nil {
			panic(err) // the row is wrong
		}
	}
	if !located {
		return f, nil
	}
	given := map[string]bool{}
	for _, item := range strings.Split(where, ",") {
		key, value, _ := strings.Cut(item, "=")
		if !slices.Contains(keys, key) {
			return f, fmt.Errorf("fault %q: %q: %s understands %s, written key=value", text, item, name,
				strings.Join(keys, ", "))
		}
		if given[key] {
			return f, fmt.Errorf("fault %q: %s is given twice; for several faults repeat --fault", text, key)
		}
		given[key] = true
		if given["msg"] && given["at"] {
			return f, fmt.Errorf("fault %q: msg and at exclude each other: it strikes once", text)
		}
		if err := f.set(key, value); err != nil {
			return f, fmt.Errorf("fault %q: %s: %w", text, key, err)
		}
	}
	return f, nil
}

// set reads the value of a key.
func (f *Fault) set(key, value string) error {
	number := func(to *int, least, most int) (err error) {
		if *to, err = strconv.Atoi(value); err != nil || *to < least || *to > most {
			if most == math.MaxInt {
				return fmt.Errorf("%q: want a number, %d or more", value, least)
			}
			return fmt.Errorf("%q: want a number, %d to %d", value, least, most)
		}
		return nil
	}
	duration := func(to *time.Duration) (err error) {
		if *to, err = time.ParseDuration(value); err != nil || *to <= 0 {
			return fmt.Errorf("%q: want a duration above 0 such as 20ms", value)
		}
		return nil
	}
	switch key {
	case "end":
		if f.End = value; value != endName(0) && value != endName(1) {
			return fmt.Errorf("%q: want a, the initiator, or b", value)
		}
		return nil
	case "at":
		return duration(&f.At)
	case "for":
		return duration(&f.For)
	case "by":
		return number(&f.By, 2, mostBy)
	case "nic":
		return number(&f.NIC, 0, math.MaxInt)
	case "rail":
		return number(&f.Rail, 0, math.MaxInt)
	case "msg":
		return number(&f.Message, 0, math.MaxInt)
	}
	return fmt.Errorf("key %q has no value", key)
}

// check returns an error if the run lacks the fault's target.
func (f *Fault) check(p *Params) error {
	switch {
	case f.NIC >= p.NICs:
		return usage("--fault %s: an end has %d NICs, numbered from 0", f.text, p.NICs)
	case f.Rail >= p.rails():
		return usage("--fault %s: a virtual queue pair has %d rails, numbered from 0", f.text, p.rails())
	case f.At > 0:
	case p.Iterations > 0 && f.Message/len(p.Sizes) >= p.Iterations:
		return usage("--fault %s would strike after message %d, but --iters ends at %d: use msg=%d", f.text,
			f.Message, p.Iterations*len(p.Sizes), p.Iterations/2)
	}
	return nil
}

// FaultReport is the effect of a fault in a column.
type FaultReport struct {
	Fault  Fault  `json:"fault"`
	Struck bool   `json:"struck"`
	What   string `json:"what"`
}

// faultPlan is the faults of a column. The goroutine that plays the rounds injects and removes
// them, by the messages posted and by the time of the column.
type faultPlan struct {
	pair   *pair
	faults []*faultState
}

// faultState is a fault of a column: not due yet, in force, or over.
type faultState struct {
	fault    Fault
	*struck                // nil until it is due
	at       time.Duration // when it was injected, by the watch of the column
	over     bool          // it was removed
	reported bool          // in a cell
}

func newFaultPlan(c *pair, faults []Fault) *faultPlan {
	fp := &faultPlan{pair: c}
	for _, f := range faults {
		fp.faults = append(fp.faults, &faultState{fault: f})
	}
	slices.SortStableFunc(fp.faults, func(a, b *faultState) int {
		return cmp.Or(cmp.Compare(a.fault.At, b.fault.At), cmp.Compare(a.fault.Message, b.fault.Message))
	})
	return fp
}

// look injects the faults that are due after the given number of posted messages, and removes those
// that have lasted long enough. It marks both on the time line.
func (fp *faultPlan) look(posted int, line *recorder) error {
	for _, s := range fp.faults {
		now := fp.pair.watch.now()
		switch {
		case s.struck == nil && s.fault.due(posted, now):
			if err := fp.strike(s); err != nil {
				return fmt.Errorf("fault %s: %w", s.fault.text, err)
			}
			if s.at = fp.pair.watch.now(); !s.missed {
				line.mark(FaultStruck, s.fault.text)
			}
		case s.struck != nil && !s.over && s.fault.For > 0 && now-s.at >= s.fault.For:
			if s.end(); s.over {
				line.mark(FaultEnded, s.fault.text)
			}
		}
	}
	return nil
}

// due reports whether the fault must strike now.
func (f *Fault) due(posted int, now time.Duration) bool {
	if f.At > 0 {
		return now >= f.At
	}
	return posted >= f.Message
}

// strike injects a fault.
func (fp *faultPlan) strike(s *faultState) (err error) {
	switch f, c := &s.fault, fp.pair; {
	case f.Rail >= c.dataRails():
		s.struck = missed("this column does not have queue pair %d", f.Rail)
	case f.NIC >= len(c.nics[f.end()]):
		s.struck = missed("this column does not use NIC %d", f.NIC)
	default:
		s.struck, err = f.kind().strike(c, f)
	}
	return err
}

// end removes the fault, if that is possible and has not happened yet.
func (s *faultState) end() {
	if s.struck != nil && s.undo != nil && !s.over {
		s.undo()
		s.over = true
	}
}

// end removes all faults that are not permanent.
func (fp *faultPlan) end() {
	for _, s := range fp.faults {
		s.end()
	}
}

// report returns the effects of faults that no cell has reported yet, and those that have not
// struck.
func (fp *faultPlan) report() (list []FaultReport) {
	for _, s := range fp.faults {
		switch {
		case s.struck != nil && !s.reported:
			s.reported = true
			list = append(list, FaultReport{Fault: s.fault, Struck: !s.missed, What: s.what})
		case s.struck == nil:
			why := fmt.Sprintf("the column has not sent %d messages", s.fault.Message)
			if s.fault.At > 0 {
				why = fmt.Sprintf("the column has not been measured for %v", s.fault.At)
			}
			list = append(list, FaultReport{Fault: s.fault, What: "has not struck: " + why})
		}
	}
	return list
}
