package main

import (
	"fmt"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/verbs"
)

// connFlags are what the queue pairs of this process are connected with.
type connFlags struct {
	GIDIndex     *int `group:"rails" name:"gid-index" short:"x"`
	IBPort       *int `group:"rails" name:"ib-port" short:"i"`
	MTU          int  `group:"rails" name:"mtu" short:"m"`
	TrafficClass *int `group:"rails" name:"tclass"`
	SL           *int `group:"rails" name:"sl" short:"S"`
	QPTimeout    *int `group:"rails" name:"qp-timeout" short:"u"`
	RetryCount   *int `group:"rails" name:"retry-count"`
	RNRRetry     *int `group:"rails" name:"rnr-retry"`
	Outs         *int `group:"rails" name:"outs" short:"o"`
}

// connFlagNames are their names: each of two processes chooses its own.
var connFlagNames = []string{"gid-index", "ib-port", "mtu", "tclass", "sl", "qp-timeout", "retry-count",
	"rnr-retry", "outs"}

// conn is the connection that they ask for.
func (f *connFlags) conn() (conn ibverbx.ConnConfig, err error) {
	var port, class, level, reads int
	for _, flag := range []struct {
		name        string
		value       *int
		least, most int
		zero        int // what stands for 0
		to          *int
	}{
		{"ib-port", f.IBPort, 1, 254, 0, &port},
		{"tclass", f.TrafficClass, 0, 255, 0, &class},
		{"sl", f.SL, 0, 15, 0, &level},
		{"qp-timeout", f.QPTimeout, 0, 31, ibverbx.None, &conn.Timeout},
		{"retry-count", f.RetryCount, 0, 7, ibverbx.None, &conn.RetryCount},
		{"rnr-retry", f.RNRRetry, 0, 7, ibverbx.None, &conn.RNRRetry},
		{"outs", f.Outs, 1, 255, 0, &reads},
	} {
		if flag.value == nil {
			continue
		}
		n := *flag.value
		if n < flag.least || n > flag.most {
			return conn, &bench.UsageError{Reason: fmt.Sprintf("--%s %d: must be %d to %d", flag.name, n,
				flag.least, flag.most)}
		}
		if *flag.to = n; n == 0 {
			*flag.to = flag.zero
		}
	}
	conn.Port, conn.TrafficClass = uint8(port), uint8(class)
	conn.SL, conn.MaxRDAtomic = uint8(level), uint8(reads)
	if x := f.GIDIndex; x != nil {
		if *x < 0 || *x > 255 {
			return conn, &bench.UsageError{Reason: fmt.Sprintf("--gid-index %d: must be 0 to 255", *x)}
		}
		if conn.GIDIndex = *x; *x == 0 {
			conn.GIDIndex = ibverbx.None
		}
	}
	if f.MTU != 0 {
		for conn.MTU = verbs.MTU256; conn.MTU.Bytes() != f.MTU; conn.MTU++ {
			if conn.MTU > verbs.MTU4096 {
				return conn, &bench.UsageError{Reason: fmt.Sprintf(
					"--mtu %d: must be 256, 512, 1024, 2048 or 4096", f.MTU)}
			}
		}
	}
	return conn, nil
}

// checkPorts says whether the NICs have the port, and their ports the entry of the GID table, that
// the flags name.
func checkPorts(conn ibverbx.ConnConfig, devices []verbs.Device) error {
	if conn.Port == 0 && conn.GIDIndex == 0 {
		return nil
	}
	for _, d := range devices {
		port := int(conn.Port)
		if port == 0 {
			port = d.DefaultPort()
		}
		attr, err := d.Query()
		if err != nil {
			return err
		}
		if port > attr.Ports {
			return &bench.UsageError{Reason: fmt.Sprintf("--ib-port %d: %s has %s", port, d.Name(),
				count(attr.Ports, "port"))}
		}
		p, err := d.QueryPort(port)
		if err != nil {
			return err
		}
		if conn.GIDIndex >= p.GIDTableLen {
			return &bench.UsageError{Reason: fmt.Sprintf(
				"--gid-index %d: port %d of %s has the entries 0 to "+
					"%d, see ibverbx devices", conn.GIDIndex, port, d.Name(), p.GIDTableLen-1)}
		}
	}
	return nil
}
