package ibverbx

import (
	"strings"
	"testing"

	"ibverbx/verbs"
)

// Every clause of an invariant panics where it is broken.
func TestBrokenInvariantsPanic(t *testing.T) {
	connected := func(t *testing.T) *recorded {
		r := newRecorded(t, 1, 2, Config{MaxMsgCntPerQP: 4, FragmentSize: 100})
		if _, err := r.PostRecv(RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.PostSend(rawWrite(1, 100)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, breaks := range map[string]func(r *recorded){
		"line: failed without error": func(r *recorded) {
			r.line.failedReq, r.line.stopAt = 1, 1
		},
		"line: stopped behind failure": func(r *recorded) {
			r.line.fail(1, noRequest(verbs.StatusFatalErr)) // without stop
		},
		"line: closed and not dead": func(r *recorded) { r.line.closed = true },

		"railSet: a slot is lost":      func(r *recorded) { r.send.rails.free-- },
		"railSet: next rail":           func(r *recorded) { r.send.rails.nextRail = 2 },
		"rail: more in use than slots": func(r *recorded) { r.send.rails.notify.inUse = 1 << 20 },
		"rail: more staged than in use": func(r *recorded) {
			r.send.rails.notify.batch = &sendBatch{tail: 1}
		},
		"rail: negative receives":  func(r *recorded) { r.send.rails.notify.recvs = -1 },
		"rail: negative to repost": func(r *recorded) { r.send.rails.data[0].recvsToPost = -1 },

		"passThrough: negative probes": func(r *recorded) { r.pass.probes.posted = -1 },

		"sender: next":          func(r *recorded) { r.send.next = r.send.win.Tail + 1 },
		"sender: data done":     func(r *recorded) { r.send.dataDone = r.send.next + 1 },
		"sender: finals posted": func(r *recorded) { r.send.finalsPosted = r.send.dataDone + 1 },
		"sender: head":          func(r *recorded) { r.send.win.Head = r.send.finalsPosted + 1 },
		"sender: finals":        func(r *recorded) { r.send.finals++ },
		"sender: bytes":         func(r *recorded) { r.send.win.Front().offset = 101 },
		"sender: staged, unlisted": func(r *recorded) {
			rl := r.send.rails.notify
			r.send.rails.take(rl)
			rl.batch = r.send.batches.lend()
			rl.batch.add()
		},

		"receiver: next message":  func(r *recorded) { r.recv.nextMessage = r.recv.win.Tail + 1 },
		"receiver: head":          func(r *recorded) { r.recv.win.Head = r.recv.nextBare + 1 },
		"receiver: to repost":     func(r *recorded) { r.recv.recvsToPost++ },
		"receiver: banked beside": func(r *recorded) { r.recv.bank.Open() },
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t)
			if strings.HasPrefix(name, "passThrough: ") {
				r = &recorded{VirtualQP: newLone(t, Config{})}
			}
			r.checkInvariants()
			breaks(r)
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, "broken invariant") {
					t.Errorf("the check panics with %q, want a broken invariant", p)
				}
			}()
			r.checkInvariants()
		})
	}
}
