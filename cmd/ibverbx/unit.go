package main

import (
	"fmt"
	"strconv"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// unit is what bandwidths are shown in.
type unit struct {
	name  string  // as it stands above a column
	scale float64 // of bytes a second
	fixed int     // digits behind the point where software NICs are measured
}

// bandwidthUnits are all of them, by the flag's word.
//
//nolint:gochecknoglobals // a table
var bandwidthUnits = []struct {
	word string
	unit
}{
	{"GB", unit{"GB/s", 1e-9, 2}},
	{"Gbit", unit{"Gbit/s", 8e-9, 1}},
	{"MiB", unit{"MiB/s", 1.0 / (1 << 20), 0}},
}

// gigabytes is the default.
//
//nolint:gochecknoglobals // a row of the table
var gigabytes = bandwidthUnits[0].unit

// unit is the one that the flags ask for.
func (f *outFlags) unit() (unit, error) {
	switch {
	case f.Unit != "" && f.ReportGbits:
		return unit{}, &bench.UsageError{Reason: "--unit and --report-gbits exclude each other: give one"}
	case f.ReportGbits:
		return bandwidthUnits[1].unit, nil
	case f.Unit == "":
		return gigabytes, nil
	}
	words := ""
	for _, u := range bandwidthUnits {
		if u.word == f.Unit {
			return u.unit, nil
		}
		words += ", " + u.word
	}
	return unit{}, &bench.UsageError{Reason: fmt.Sprintf("--unit %.20q: have %s", f.Unit, words[2:])}
}

// of is a bandwidth in GB/s in this unit.
func (u unit) of(gbPerSecond float64) float64 { return gbPerSecond * 1e9 * u.scale }

// fix writes a bandwidth with as many digits as columns of software NICs have.
func (u unit) fix(gbPerSecond float64) string {
	return strconv.FormatFloat(u.of(gbPerSecond), 'f', u.fixed, 64)
}
