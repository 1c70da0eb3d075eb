package bench

import "ibverbx/cmd/ibverbx/internal/units"

// Mode is what is measured.
type Mode string

// The modes.
const (
	Bandwidth Mode = "bw"  // of as many messages at a time as possible
	Latency   Mode = "lat" // of one message at a time
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Bandwidth, Latency} }

// Series reports whether the mode measures one message at a time, each with its own time.
func (m Mode) Series() bool { return m == Latency }

// Scheme is a column: how many queue pairs, and how they are used.
type Scheme string

// The schemes.
const (
	Single Scheme = "single" // one queue pair on one NIC
	Spray  Scheme = "spray"
	DQPLB  Scheme = "dqplb"
)

// Schemes returns all schemes, in the order of the columns.
func Schemes() []Scheme { return []Scheme{Single, Spray, DQPLB} }

// words returns names as text.
func words[T ~string](list []T) (text []string) {
	for _, v := range list {
		text = append(text, string(v))
	}
	return text
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds = units.Seconds
