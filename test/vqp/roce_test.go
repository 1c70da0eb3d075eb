package vqp_test

import (
	"fmt"
	"net/netip"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// NICs of UDP sockets, on loopback addresses of one process. A peer answers when it gets a
// processor, so even a hasty connection repeats a request for almost a second: a process that was
// not run in the meantime takes one of the timeouts, and not all.
var _ = offer("roce", provider{
	open: func(devices int) (verbs.Provider, error) {
		cfg := roce.Config{}
		for i := range devices {
			cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)))
		}
		p, err := roce.Open(cfg)
		if err != nil {
			return nil, err
		}
		return p, nil
	},
	strict: true,
	slow:   4,
	hasty:  ibverbx.ConnConfig{Timeout: 15, RetryCount: 6, RNRRetry: 2}, // 7 times 134 ms
	setLink: func(_ testing.TB, dev verbs.Device, up bool) {
		dev.(*roce.Device).SetLink(up)
	},
})
