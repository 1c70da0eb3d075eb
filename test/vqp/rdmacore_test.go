package vqp_test

import (
	"flag"
	"os/exec"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// Flags for real NICs.
var (
	devicesFlag = flag.String("devices", "", "which of the real NICs, for example rxe0,rxe1; empty for all")
	linkFlag    = flag.String("link", "", "`command` that sets a link, for a device and \"up\" or \"down\" "+
		"as its arguments; empty leaves links alone")
)

// Real NICs may be rdma_rxe on an emulated machine, a hundred times slower than hardware. There a
// live peer may take most of a second to answer.
var (
	patientNIC = ibverbx.ConnConfig{Timeout: 18} // 1.07 s to answer
	hastyNIC   = ibverbx.ConnConfig{Timeout: 16, RetryCount: 2, RNRRetry: 2}
)

var _ = offer("rdmacore", provider{
	open: func(int) (verbs.Provider, error) {
		p, err := rdmacore.Open(rdmacore.Config{Devices: *devicesFlag})
		if err != nil {
			return nil, err
		}
		return p, nil
	},
	slow:    4,
	patient: patientNIC,
	hasty:   hastyNIC,
	setLink: setLinkByCommand,
})

// offer adds a provider to the table.
func offer(name string, p provider) string {
	providers[name] = p
	return name
}

// setLinkByCommand sets the link of a NIC with the command that a flag gives.
func setLinkByCommand(tb testing.TB, dev verbs.Device, up bool) {
	tb.Helper()
	if *linkFlag == "" {
		tb.Skip("-link says how to take a link down")
	}
	to := map[bool]string{true: "up", false: "down"}[up]
	if out, err := exec.Command(*linkFlag, dev.Name(), to).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s %s: %v\n%s", *linkFlag, dev.Name(), to, err, out)
	}
}
