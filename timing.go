package ibverbx

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/bits"
	"time"

	"ibverbx/verbs"
)

// Timing has the histograms of [Config.Timing], about the send requests that were timed: the first,
// and then one in 64 on average, at random distances, so that programs that post in batches are not
// always timed at the same place of a batch. Times begin and end inside calls of this package: the
// end of a time is when the program polls, not when the NIC was done.
type Timing struct {
	// Request is the time in nanoseconds from the post of a request until its completion is
	// reported, of requests that succeed. Completions keep posting order, so this includes waiting
	// for earlier requests.
	Request Histogram `json:"request"`
	// Wait is the time in nanoseconds from the post of a request until all of its data is given to
	// queue pairs; 0 if they had room at once. A single queue pair does not queue.
	Wait Histogram `json:"wait"`
	// Size is the length in bytes of each request that Request counts.
	Size Histogram `json:"size"`
}

// add adds the counts of o.
func (t *Timing) add(o *Timing) {
	t.Request.merge(&o.Request)
	t.Wait.merge(&o.Wait)
	t.Size.merge(&o.Size)
}

// histogramBuckets is the number of buckets: four for each power of two up to 2^40, which is a
// tebibyte, or 18 minutes in nanoseconds.
const histogramBuckets = 4 * 39

// Histogram counts values in buckets whose bounds grow by a quarter of a power of two: a value is
// known to a quarter or better. The zero value is empty. It is a plain value: copying it copies the
// counts.
type Histogram struct {
	Count uint64 // values
	Sum   uint64 // of the values
	// buckets[i] counts the values above bucketBound(i-1), up to and including bucketBound(i); the
	// last one also those above.
	buckets [histogramBuckets]uint64
}

// add counts a value.
func (h *Histogram) add(v uint64) {
	h.Count++
	h.Sum += v
	h.buckets[bucketOf(v)]++
}

// bucketOf returns the bucket of a value.
func bucketOf(v uint64) int {
	if v <= 4 {
		return int(max(v, 1) - 1)
	}
	v-- // bounds are inclusive
	shift := bits.Len64(v) - 3
	return min(4+4*shift+int(v>>shift&3), histogramBuckets-1)
}

// bucketBound returns the greatest value of a bucket.
func bucketBound(i int) uint64 {
	if i < 4 {
		return uint64(i) + 1
	}
	return uint64(i&3+5) << (i>>2 - 1)
}

// merge adds the counts of o.
func (h *Histogram) merge(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
}

// Buckets ranges over the bounds of the buckets, from the least, and how many values lie in each:
// above the bound before, and not above its own. The last bucket, of 2^40, has all greater values
// too.
func (h *Histogram) Buckets() iter.Seq2[uint64, uint64] {
	return func(yield func(bound, n uint64) bool) {
		for i, n := range h.buckets {
			if !yield(bucketBound(i), n) {
				return
			}
		}
	}
}

// Quantile returns the bound of the bucket of the value that a part q of all, 0 to 1, does not
// exceed; 0 if there are no values.
func (h *Histogram) Quantile(q float64) uint64 {
	rank := uint64(q * float64(h.Count))
	for i, n := range h.buckets {
		if n != 0 && n >= rank {
			return bucketBound(i)
		}
		rank -= n
	}
	return 0
}

// histogramJSON is the form of a histogram in JSON: the bounds and counts of the buckets that are
// not empty.
type histogramJSON struct {
	Count   uint64      `json:"count"`
	Sum     uint64      `json:"sum"`
	Buckets [][2]uint64 `json:"buckets"`
}

// MarshalJSON writes the count, the sum, and the bound and count of each bucket that is not empty.
func (h Histogram) MarshalJSON() ([]byte, error) {
	j := histogramJSON{Count: h.Count, Sum: h.Sum, Buckets: [][2]uint64{}}
	for bound, n := range h.Buckets() {
		if n != 0 {
			j.Buckets = append(j.Buckets, [2]uint64{bound, n})
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the form of MarshalJSON.
func (h *Histogram) UnmarshalJSON(text []byte) error {
	var j histogramJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*h = Histogram{Count: j.Count, Sum: j.Sum}
	for _, b := range j.Buckets {
		h.buckets[bucketOf(b[0])] += b[1]
	}
	return nil
}

// Trace is the last events of a virtual CQ's queue pairs that have [Config.Trace]: see
// [VirtualCQ.Trace]. Package ibverbx/trace writes it for a viewer.
type Trace struct {
	Begin  time.Time    `json:"begin"`  // when times count from; the first such queue pair was made then
	Events []TraceEvent `json:"events"` // in the order in which they happened; 4096 at most
	Lost   uint64       `json:"lost"`   // earlier events, which others have replaced
	Rails  []TraceRail  `json:"rails"`  // of the virtual queue pairs that are open
}

// TraceRail is a queue pair of a virtual one that records events.
type TraceRail struct {
	VirtualQP uint32 `json:"virtual_qp"`
	Rail      int    `json:"rail"` // as in [Stats].Rails
	Device    string `json:"device"`
	QPNum     uint32 `json:"qp_num"`
	PeerQPNum uint32 `json:"peer_qp_num"` // of the queue pair that it is connected to; 0 if unknown
}

// TraceEvent is one event of a [Trace]: a step of a request of [VirtualQP.PostSend], of a work
// request, which carries a part of it, or of a receive.
type TraceEvent struct {
	// At is the time since [Trace].Begin. Events of one post, or of one batch of completions, have
	// the same: the clock is read once for all.
	At time.Duration `json:"at_ns"`
	// Tag tells apart what has no other name: see [TraceKind].
	Tag uint64 `json:"tag"`
	// Request is the low 32 bits of the number of the request, or of the receive, among all that
	// the virtual queue pair has accepted; they count from 1. It is 0 if that is unknown, as of
	// receives and failed completions of a single queue pair; Tag of such a TraceCompleted is the
	// ID.
	Request   uint32     `json:"request"`
	VirtualQP uint32     `json:"virtual_qp"` // [VirtualQP.Num]
	Bytes     uint32     `json:"bytes"`      // at most 2^32-1, also of longer requests
	Kind      TraceKind  `json:"kind"`
	Rail      uint8      `json:"rail"` // as in [Stats].Rails; [NoRail] for events of no rail
	Part      FailedPart `json:"part"` // of work requests: what it carries
	Code      uint8      `json:"code"` // see Status and Opcode
}

// NoRail is [TraceEvent].Rail of an event that belongs to no rail.
const NoRail = 255

// Status returns the status of a TraceCompleted, TraceInOrder, TraceReported or TraceReceived.
func (e *TraceEvent) Status() verbs.Status { return verbs.Status(e.Code) }

// Opcode returns the operation of a TraceAccepted.
func (e *TraceEvent) Opcode() verbs.Opcode { return verbs.Opcode(e.Code) }

// TraceKind is what a [TraceEvent] reports. A request has Accepted, InOrder and Reported, and each
// of its work requests Staged, Posted and Completed, unless the connection fails or ends before. A
// single queue pair has no Staged and InOrder, and of an unsignaled request no Completed and
// Reported: the completion of a later one covers it.
type TraceKind uint8

// The kinds of events. Tag is the ID of the request or receive for those that a program sees
// (Accepted, Reported, Received). Of a work request it is its place: of PartFragment the index of
// the fragment in Spray and for plain writes and reads, or DQPLB's number, which markers have too;
// of PartMessage and PartNotification the count of such messages on this connection, at both ends
// the same.
const (
	TraceAccepted  TraceKind = 1 + iota // PostSend has accepted a request
	TraceStaged                         // a work request was given to a rail that had room
	TracePosted                         // the NIC has taken a work request
	TraceCompleted                      // the NIC has completed a work request
	TraceInOrder                        // the data of a request, and of all earlier ones, is acknowledged
	TraceReported                       // the completion of a request was reported
	TraceReposted                       // a work request of a lost rail goes out again, on this rail
	TraceArrived                        // a message of the peer has arrived
	TraceReleased                       // its turn has come: a receive has got it
	TraceReceived                       // the completion of a receive was reported
	TraceReset                          // the queue pairs were reset: they hold nothing from before
)

var traceKindNames = [...]string{"", "accepted", "staged", "posted", "completed", "in order", "reported",
	"reposted", "arrived", "released", "received", "reset"}

// String returns the kind in words.
func (k TraceKind) String() string {
	if k != 0 && int(k) < len(traceKindNames) {
		return traceKindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// MarshalText returns the kind in words.
func (k TraceKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the form of MarshalText. An unknown kind changes nothing.
func (k *TraceKind) UnmarshalText(text []byte) error {
	for i, name := range traceKindNames {
		if i != 0 && name == string(text) {
			*k = TraceKind(i)
			return nil
		}
	}
	return fmt.Errorf("ibverbx: %w: event of the kind %.40q: have accepted to reset", verbs.ErrInvalid,
		text)
}

// String returns one line: "1.5ms reported virtual qp 3 request 7".
func (e TraceEvent) String() string {
	s := fmt.Sprintf("%v %v virtual qp %d request %d tag %d", e.At, e.Kind, e.VirtualQP, e.Request, e.Tag)
	if e.Rail != NoRail {
		s += fmt.Sprintf(" rail %d", e.Rail)
	}
	if e.Part != PartUnknown {
		s += " " + e.Part.String()
	}
	if e.Bytes != 0 {
		s += fmt.Sprintf(" %d bytes", e.Bytes)
	}
	if e.Kind != TraceAccepted && e.Code != 0 {
		s += " " + e.Status().Name()
	}
	return s
}
