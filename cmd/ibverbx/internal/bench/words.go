package bench

import (
	"slices"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/units"
)

// Mode is what is measured: a row of the table of modes.
type Mode string

// The modes.
const (
	Bandwidth Mode = "bw"
	Latency   Mode = "lat"
)

// modeRow is what is particular about a mode.
type modeRow struct {
	name  Mode
	sizes string // that are measured where none are given
	// series: one message at a time, of which each has its time; else as many as can be.
	series bool
}

// modeRows is the table of modes. The first one is the default.
func modeRows() []modeRow {
	return []modeRow{
		{name: Bandwidth, sizes: "4K..16M/4"},
		{name: Latency, sizes: "8,64,512,4K,32K,256K", series: true},
	}
}

// Modes are all of them.
func Modes() (list []Mode) {
	for _, r := range modeRows() {
		list = append(list, r.name)
	}
	return list
}

// row is the mode's. Complete refuses a mode without one, which has a zero row.
func (m Mode) row() modeRow {
	for _, r := range modeRows() {
		if r.name == m {
			return r
		}
	}
	return modeRow{}
}

// Series says whether the mode measures one message at a time.
func (m Mode) Series() bool { return m.row().series }

// Scheme is a column: how many queue pairs, and how they are used.
type Scheme string

// The schemes.
const (
	Single Scheme = "single" // one queue pair on one NIC
	Spray  Scheme = "spray"
	DQPLB  Scheme = "dqplb"
	// AllSchemes stands for all of them on the command line.
	AllSchemes Scheme = "all"
)

// schemeRow is what a scheme is to a virtual queue pair.
type schemeRow struct {
	name   Scheme
	scheme ibverbx.Scheme
}

// schemeRows is the table of schemes, in the order of the columns.
func schemeRows() []schemeRow {
	return []schemeRow{{Single, ibverbx.DQPLB}, {Spray, ibverbx.Spray}, {DQPLB, ibverbx.DQPLB}}
}

// Schemes are all of them, in the order of the columns.
func Schemes() (list []Scheme) {
	for _, r := range schemeRows() {
		list = append(list, r.name)
	}
	return list
}

// row is the scheme's, which Complete has found in the table.
func (s Scheme) row() schemeRow { return schemeRows()[slices.Index(Schemes(), s)] }

// words are names as text.
func words[T ~string](list []T) (text []string) {
	for _, v := range list {
		text = append(text, string(v))
	}
	return text
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds = units.Seconds
