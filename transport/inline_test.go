package transport_test

import (
	"testing"

	"ibverbx/internal/vqptest"
)

// Small steps of each operation are inlined, as in the packages below.
func TestHotPathInlines(t *testing.T) {
	vqptest.MustInline(t, "ibverbx/transport.(*Endpoint).post",
		"ibverbx/transport.(*Endpoint).usable",
		"ibverbx/transport.(*Endpoint).ordinary",
		"ibverbx/transport.(*peerState).sendID",
		"ibverbx/transport.(*peerState).hasBuffer",
		"ibverbx/transport.(*peerState).countPut",
		"ibverbx/transport.(*peerState).fillHeader",
		"ibverbx/transport.(*sending).full",
		"ibverbx/transport.(*sending).idle",
		"ibverbx/transport.(*pendingQueue).any",
		"ibverbx/transport.(*fence).posted",
		"ibverbx/transport.(*chores).due",
		"ibverbx/transport.wridEndpoint",
	)
}
