package sendside

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

// TestTransportMutations plants bugs in package transport.
func TestTransportMutations(t *testing.T) { flags.Hunt(t, &Transport, transportMutations, 20000) }

func inTransport(name, file string, changes ...hunt.Change) hunt.Mutation {
	return hunt.Mutation{Name: name, File: "transport/" + file, Changes: changes}
}

// transportMutations are the bugs that worlds of endpoints must show.
var transportMutations = []hunt.Mutation{
	// Resources.
	inTransport("queue overtaken", "post.go", hunt.Change{Old: "case c.pending.any() && !e.turn && !e.aside:", New: "case c.pending.head == nil && c.pending.any() && !e.turn && !e.aside:"}),
	inTransport("limit of outstanding operations ignored", "post.go", hunt.Change{
		Old: "case c.ops.len()-c.inControl >= c.limit:", New: "case c.ops.len()-c.inControl > c.limit:"}),
	inTransport("credit not asked for", "post.go", hunt.Change{Old: "case credit && c.credits == 0:", New: "case credit && c.credits < 0:"}),
	inTransport("bounce buffer lost where a pack function errs", "am.go", hunt.Change{
		Old: "\tif err != nil {\n\t\tw.bounce.put(buf)\n\t\treturn 0, err\n\t}\n\tc.fillHeader", New: "\tif err != nil {\n\t\treturn 0, err\n\t}\n\tc.fillHeader"}),
	inTransport("bounce buffer lost where the queue pair refuses", "post.go", hunt.Change{
		Old: "\t\tif buf != noBuffer {\n\t\t\tc.w.bounce.put(buf)\n\t\t}\n\t\treturn nil, e.postRefused", New: "\t\treturn nil, e.postRefused"}),
	inTransport("bounce buffer back before the operation has ended", "post.go", hunt.Change{
		Old: "\to.kind, o.buf, o.comp = kind, buf, comp\n", New: "\tif buf != noBuffer && len(c.w.bounce.free) == 0 && kind == opData {\n\t\tc.w.bounce.put(buf)\n\t\tbuf = noBuffer\n\t}\n\to.kind, o.buf, o.comp = kind, buf, comp\n"}),
	inTransport("credit taken by a refused message", "am.go", hunt.Change{
		Old: "\t_, err := e.post(name, wr, opData, buf, comp)\n\twr[0].SGL = nil\n\tif err == nil {", New: "\t_, err := e.post(name, wr, opData, buf, comp)\n\twr[0].SGL = nil\n\tif err == nil || err == ErrNoResource {"}),
	inTransport("ErrBusy when credits lack", "pending.go", hunt.Change{Old: "\tif c.credits != 0 {\n\t\tl &^= lackCredit\n\t}\n", New: "\tl &^= lackCredit\n"}),
	inTransport("pending whatever there is", "pending.go", hunt.Change{Old: "\t\treturn ErrBusy\n", New: "\t\tbreak\n"}),

	// The queue.
	inTransport("queue served from the wrong end", "pending.go", hunt.Change{
		Old: "\t\tq.tail.next = p\n\t}\n\tq.tail = p\n\tq.count++\n", New: "\t\tp.next = q.head\n\t\tq.head = p\n\t\tq.count++\n\t\treturn\n\t}\n\tq.tail = p\n\tq.count++\n"}),
	inTransport("a request that stays goes behind the others", "pending.go", hunt.Change{Old: "\tc.pending.pushFront(p)\n\treturn outcome\n", New: "\tc.pending.push(p)\n\treturn outcome\n"}),
	inTransport("a request that made progress is forgotten", "pending.go", hunt.Change{
		Old: "case outcome == PendingDone || outcome > PendingNoResource ||", New: "case outcome == PendingDone || outcome == PendingProgress || outcome > PendingNoResource ||"}),
	inTransport("completions before pending requests", "progress.go",
		hunt.Change{Old: "\tif w.waiting.len() != 0 {\n\t\tn += w.dispatchPending()\n\t}\n\tif len(w.events) == 0 {", New: "\tif len(w.events) == 0 {\n\t\tif w.waiting.len() != 0 {\n\t\t\tn += w.dispatchPending()\n\t\t}\n"},
		hunt.Change{Old: "\tn += len(w.events)\n\tw.runEvents()\n", New: "\tn += len(w.events)\n\tw.runEvents()\n\tw.mu.Lock()\n\tn += w.dispatchPending()\n\tw.mu.Unlock()\n"}),
	inTransport("purge leaves the last request", "pending.go", hunt.Change{Old: "for p := q.pop(); p != nil; p = q.pop() {", New: "for p := q.pop(); p != nil && q.head != nil; p = q.pop() {"}),
	inTransport("the endpoint served last is served first", "pending.go",
		hunt.Change{Old: "\t\tif c.pending.head != nil {\n\t\t\tc.ring()\n\t\t}\n\t}\n\treturn did\n", New: "\t\tif c.pending.head != nil && !c.pending.ringed {\n\t\t\tc.ring()\n\t\t\tfor range w.waiting.len() - 1 {\n\t\t\t\tw.waiting.push(w.waiting.pop())\n\t\t\t}\n\t\t}\n\t}\n\treturn did\n"}),
	inTransport("endpoint forgotten that cannot go", "pending.go", hunt.Change{Old: "c.wants(p.lack, p.taken) {\n\t\t\tc.ring()\n", New: "c.wants(p.lack, p.taken) {\n"}),
	inTransport("OnReady not called again", "pending.go", hunt.Change{Old: "\tif p.again {\n", New: "\tif p.again && p.lack == 0 {\n"}),

	// Order and flush.
	inTransport("fence ignored", "post.go", hunt.Change{Old: "if c.fence || c.fenceNext && !e.turn && !e.aside {", New: "if c.fenceNext && !e.turn && !e.aside {"}),
	inTransport("a fence behind the queue is taken along by a flush in it", "ending.go", hunt.Change{Old: "if c.fence = rails > 1; !c.fence {", New: "if c.fence = rails > 1; rails > 0 {"}),
	inTransport("a flush is done before its caller was told of what it waited for", "ending.go", hunt.Change{Old: "if c.untold == c.w.round {", New: "if c.untold > c.w.round {"}),
	inTransport("remote flush without a read", "ending.go", hunt.Change{Old: "if kind == FlushRemote && c.dirty {", New: "if kind == FlushRemote && c.dirty && c.limit == 0 {"}),
	inTransport("remote flush over one rail", "ending.go", hunt.Change{Old: "wr[0].Flags, wr[0].EveryRail = verbs.SendSignaled, true", New: "wr[0].Flags, wr[0].EveryRail = verbs.SendSignaled, false"}),
	inTransport("atomics leave nothing to flush", "rma.go", hunt.Change{Old: "\to.result = old\n\tc.dirty = true\n", New: "\to.result = old\n"}),
	inTransport("flush is done though something is outstanding", "ending.go", hunt.Change{Old: "\tif c.ops.empty() {\n\t\tif c.untold", New: "\tif c.ops.len() < 2 {\n\t\tif c.untold"}),
	inTransport("flush lost", "progress.go", hunt.Change{Old: "for !c.ops.empty() && c.ops.front().kind == opFlush {", New: "if !c.ops.empty() && c.ops.front().kind == opFlush {"}),
	inTransport("completions told the wrong way round", "progress.go", hunt.Change{
		Old: "func (w *Worker) tell(e event) { w.events = append(w.events, e) }",
		New: "func (w *Worker) tell(e event) {\n\tw.events = append(w.events, e)\n\tif n := len(w.events); n > 1 && e.kind == eventComplete && w.events[n-2].kind == eventComplete {\n\t\tw.events[n-1], w.events[n-2] = w.events[n-2], w.events[n-1]\n\t}\n}"}),

	// Data.
	inTransport("what was got is copied before it has come", "rma.go", hunt.Change{Old: "\to.dst = dst\n\tc.got", New: "\to.dst, o.kind = dst, opData\n\tc.got"}),
	inTransport("old value of another atomic", "progress.go", hunt.Change{Old: "*o.result = c.cellValue(c.ops.head)", New: "*o.result = c.cellValue(c.ops.head + 1)"}),
	inTransport("header behind the payload", "am.go", hunt.Change{Old: "\tcopy(buf[wireHeader+len(hdr):], payload)\n", New: "\tcopy(buf[wireHeader:], payload)\n"}),
	inTransport("message reused before its handler has returned", "progress.go", hunt.Change{Old: "case m.state == messageHandled:", New: "case m.state != messagePosted:"}),
	inTransport("kept message posted at once", "receive.go", hunt.Change{Old: "\t\tm.state = messageKept\n", New: "\t\tm.c.repost(m.slot, true)\n\t\tm.state = messageKept\n"}),

	// Credits.
	inTransport("credit given twice", "receive.go", hunt.Change{Old: "\t\t\tm.owes = false\n\t\t\tc.owed++\n", New: "\t\t\tc.owed++\n"}),
	inTransport("credits of a refused message are lost", "receive.go", hunt.Change{Old: "\t\t\tw.again = append(w.again, c)\n", New: "\t\t\tc.gave()\n"}),
	inTransport("credits wait for half of the buffers", "receive.go", hunt.Change{Old: "if 2*c.owed >= c.w.cfg.AMBuffers || c.granted == c.received {", New: "if 2*c.owed >= c.w.cfg.AMBuffers {"}),
	inTransport("credits that come with a message are lost", "receive.go", hunt.Change{
		Old: "\tif c.credits += int(h.credits); c.credits > c.peer.AMBuffers {", New: "\tif h.kind == wireCredits || h.credits < 2 {\n\t\tc.credits += int(h.credits)\n\t}\n\tif c.credits > c.peer.AMBuffers {"}),
	inTransport("too many credits believed", "receive.go", hunt.Change{Old: "c.credits > c.peer.AMBuffers {", New: "c.credits > 1<<20 {"}),
	inTransport("credits behind the goodbye", "receive.go", hunt.Change{Old: " || c.peerBye || c.parting {", New: " || c.peerBye {"}),

	// Ends.
	inTransport("message without a credit handled", "receive.go", hunt.Change{Old: "case c.received == c.granted:", New: "case c.received == c.granted+100:"}),
	inTransport("messages handled after a violation", "ending.go", hunt.Change{Old: "if c.deaf = errors.Is(sentinel, ErrProtocol); c.deaf ||", New: "if errors.Is(sentinel, ErrProtocol) ||"}),
	inTransport("reserved bytes not looked at", "wire.go", hunt.Change{Old: "case msg[3] != 0 || msg[6] != 0 || msg[7] != 0:", New: "case msg[3] != 0 || msg[6] != 0:"}),
	inTransport("failure told twice", "progress.go", hunt.Change{Old: "\tw.failing = w.failing[:0]\n", New: ""}),
	inTransport("failure told nobody", "ending.go", hunt.Change{Old: "\t\tc.w.failing = append(c.w.failing, c)\n", New: ""}),
	inTransport("cancelled operations end well", "progress.go", hunt.Change{Old: "\t\tif !ok {\n\t\t\te.err = c.err\n\t\t}\n", New: "\t\tif !ok && !c.aborted {\n\t\t\te.err = c.err\n\t\t}\n"}),
	inTransport("abort leaves the queue pair", "ending.go", hunt.Change{Old: "\tc.stage = stageAborted\n\treturn c.qp.Close()\n", New: "\tc.stage = stageAborted\n\tif c.aborted && !c.ops.empty() && c.limit > 1 {\n\t\treturn nil\n\t}\n\treturn c.qp.Close()\n"}),
	inTransport("close does not wait for what is pending", "ending.go", hunt.Change{Old: "case c.pending.any() || !c.ops.empty():", New: "case !c.ops.empty():"}),
	inTransport("close does not say goodbye", "ending.go", hunt.Change{Old: "c.parting = c.sendControl(wireBye)", New: "c.parting = true"}),
	inTransport("pending requests never hear of a failure", "pending.go", hunt.Change{Old: "c.err == nil && c.wants(p.lack, p.taken) {", New: "c.wants(p.lack, p.taken) {"}),
}
