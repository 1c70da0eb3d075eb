package ibverbx

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// A completion that names a rail which cannot carry its request does not free a slot there.
func TestCompletionOnTheWrongRailIsDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{MaxMsgSize: 100, MaxMsgCntPerQP: 1})
	if _, err := r.PostSend(rawWrite(1, 200)); err != nil { // two fragments: both rails are full
		t.Fatal(err)
	}
	onNotify := verbs.WC{ID: wrid(kindData, r.send.rails.notify.idBits, 0, 1), QPNum: r.notify.Num()}
	if got := r.CQ().ProcessCompletions(nil, 0, onNotify); len(got) != 0 {
		t.Errorf("reported %+v", got)
	}
	within(t, 5*time.Second, func() {
		if _, err := r.PostSend(rawWrite(2, 100)); err != nil {
			t.Error(err)
		}
	})
	if got := r.finish(t); len(got) != 2 || got[0].Status != 0 || got[1].Status != 0 {
		t.Errorf("%+v", got)
	}
	if len(r.notify.posts) != 0 {
		t.Errorf("data went out on the notify QP: %+v", r.notify.posts)
	}
}

// A duplicate completion frees no second slot.
func TestDuplicateCompletionIsDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{MaxMsgSize: 100, MaxMsgCntPerQP: 2})
	if _, err := r.PostSend(rawWrite(1, 200)); err != nil { // one fragment on each rail
		t.Fatal(err)
	}
	first := verbs.WC{ID: wrid(kindData, 0, 0, 1), QPNum: r.qps[0].Num()}
	r.CQ().ProcessCompletions(nil, 0, first, first, first)
	if s := r.Stats(); s.Rails[0].Outstanding < 0 || s.StaleEvents == 0 {
		t.Errorf("outstanding %d, dropped %d", s.Rails[0].Outstanding, s.StaleEvents)
	}
	within(t, 5*time.Second, func() {
		if _, err := r.PostSend(rawWrite(2, 400)); err != nil {
			t.Error(err)
		}
	})
}
