package ibverbx_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// What travels as one message is refused where it is longer than the NIC's port carries, and
// nothing is lost: a SEND always, and on a single queue pair everything.
func TestMessagesBeyondThePortAreRefused(t *testing.T) {
	const longest = 4096
	fabric := soft.Config{Device: soft.DeviceConfig{MaxMsgSize: longest}}
	for _, m := range modes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
			t.Run(fmt.Sprintf("%s/%v", m.name, op), func(t *testing.T) {
				l := newLink(t, linkConfig{nics: m.nics, fabric: fabric,
					qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps}})
				if op.IsSend() {
					if _, err := l.b.PostRecv(ibverbx.RecvWR{Local: l.b.mr.Slice(0, 2*longest)}); err != nil {
						t.Fatal(err)
					}
				}
				n, err := l.a.PostSend(l.a.write(op, 1, 0, longest+1))
				if !op.IsSend() && m.name != "single" {
					if err != nil {
						t.Fatal(err) // it is fragmented
					}
					ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
					return
				}
				if n != 0 || !errors.Is(err, ibverbx.ErrLength) || !strings.Contains(err.Error(), "4096") {
					t.Fatalf("%d, %v", n, err)
				}
				l.a.send(t, l.a.write(op, 2, 0, longest))
				ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
			})
		}
	}
}
