package main

import "strconv"

// unit is what bandwidths are shown in.
type unit struct {
	name  string  // as it stands above a column
	scale float64 // of bytes a second
	fixed int     // digits behind the point where software NICs are measured
}

// The units of bandwidths; the second is that of --report-gbits.
//
//nolint:gochecknoglobals // constants
var (
	gigabytes = unit{"GB/s", 1e-9, 2}
	gigabits  = unit{"Gbit/s", 8e-9, 1}
)

// unitOf is the one that --report-gbits asks for.
func unitOf(gbits bool) unit {
	if gbits {
		return gigabits
	}
	return gigabytes
}

// of is a bandwidth in GB/s in this unit.
func (u unit) of(gbPerSecond float64) float64 { return gbPerSecond * 1e9 * u.scale }

// fix writes a bandwidth with as many digits as columns of software NICs have.
func (u unit) fix(gbPerSecond float64) string {
	return strconv.FormatFloat(u.of(gbPerSecond), 'f', u.fixed, 64)
}
