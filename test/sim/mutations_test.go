package sim

// mutations are the bugs that the simulation must find. They are mistakes that were made, in this library or in others of its kind,
// or that could have been.
var mutations = []mutation{
	// Errors.
	{"notification after a failed fragment", "fail.go", []change{{
		"for i := max(q.stopAt, q.noted); i < q.send.tail; i++ {", "for i := q.send.tail; i < q.send.tail; i++ {"}}},
	{"later requests go out after an error", "complete.go", []change{{
		"if q.failure != nil {\n\t\tq.progressFailed()\n\t} else if", "if"}}},
	{"work that was staged behind a failure goes out", "fail.go", []change{{"\tq.unstage(q.stopAt)\n", ""}}},
	{"last error wins", "fail.go", []change{{"\tif q.failure != nil {\n\t\treturn\n\t}\n\tf.QPNum", "\tf.QPNum"}}},
	{"the error of the request that failed is not told", "complete.go", []change{{"(q.send.head != q.failed || q.told)", "true"}}},
	{"earlier requests hold up the end for ever", "fail.go", []change{{"case time.Since(q.since) > q.cfg.Linger:", "case q.since.IsZero():"}}},
	{"error names another rail", "fail.go", []change{{"f.Rail, f.Device, f.RailQPNum = rl.index(), rl.qp", "f.Rail, f.Device, f.RailQPNum = 0, rl.qp"}}},
	{"vendor code lost in the completion", "fail.go", []change{{"r.status, r.vendorErr = wc.Status, wc.VendorErr", "r.status = wc.Status"}}},
	{"vendor code lost in the error", "fail.go", []change{{"\t\tf.VendorErr = wc.VendorErr\n", ""}}},
	{"flushed receive says what had arrived", "recv.go", []change{{
		"r.status, r.vendorErr, r.bytes, r.hasImm = verbs.StatusWRFlushErr, 0, 0, false", "r.status, r.vendorErr = verbs.StatusWRFlushErr, 0"}}},
	{"error names another fragment", "describe.go", []change{{"offset := uint64(f.Fragment) * limit", "offset := uint64(max(f.Fragment, 1)) * limit"}}},
	{"success after an error, sends", "complete.go", []change{{"if q.send.head > q.stopAt && (q.send.head", "if false && (q.send.head"}}},
	{"success after an error, receives", "recv.go", []change{{"if s.torn {", "if false {"}}},
	{"error routed by opcode", "complete.go", []change{{
		"\tswitch wridKind(wc.ID) {\n\tcase kindData,", "\tkind := wridKind(wc.ID)\n\tif wc.Status != 0 && wc.Opcode.IsRecv() {\n\t\tkind = kindRecv\n\t}\n\tswitch kind {\n\tcase kindData,"}}},
	{"receives are not flushed on failure", "fail.go", []change{{"\tq.killed = true\n\tq.recv.flushWaiting()\n", "\tq.killed = true\n"}}},
	{"queue pairs are left running on failure", "fail.go", []change{{
		"_ = rl.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)", "_ = rl"}}},
	{"flushed receives are believed at once", "recv.go", []change{{
		"if r.status != verbs.StatusSuccess && q.suspect != nil && q.failure == nil && !q.killed {", "if false {"}}},

	// Buffers and completions.
	{"buffer released at the first failed fragment", "complete.go", []change{{
		"\tr.left--\n\trl.inUse--\n\tq.free++\n", "\tr.left--\n\tif wc.Status != 0 {\n\t\tr.left = 0\n\t}\n\trl.inUse--\n\tq.free++\n"}}},
	{"reported before the notification is acknowledged", "send.go", []change{{
		"return r.dispatched && r.left == 0 && (r.note == noteNone || r.note == noteDone)", "return r.dispatched && r.left == 0 && r.note != noteDue"}}},
	{"double completion", "virtualcq.go", []change{{"c.unpoll(batch[i+1 : n])", "c.unpoll(batch[i:n])"}}},
	{"completion out of order", "virtualcq.go", []change{{"for range later {", "for range later * 0 {"}}},
	{"completions lost that a loop did not take", "virtualcq.go", []change{{"c.unpoll(batch[i+1 : n])", ""}}},
	{"results of a poll dropped when a CQ dies", "virtualcq.go", []change{{"c.loseDevice(pc.device, err)\n", "c.loseDevice(pc.device, err)\n\t\t\t\tout.n = 0\n"}}},
	{"flush lost on close", "reset.go", []change{{"\tq.reportSends(&out)\n\tq.progressRecvs(&out)\n", "\tq.reportSends(&out)\n"}}},
	{"sends lost on close", "reset.go", []change{{"\tq.reportSends(&out)\n\tq.progressRecvs(&out)\n", "\tq.progressRecvs(&out)\n"}}},
	{"memory can be closed in use", "send.go", []change{{"if k := wr.Local.Keys; k != nil && k.mr != nil && !h.take(k.mr) {", "if false {"}}},
	{"memory is held for ever", "complete.go", []change{{"\t\tout.release(r)\n", ""}}},
	{"ring grows wrong", "window.go", []change{{"slots[n&mask] = w.slots[n&w.mask]", "slots[n&w.mask] = w.slots[n&w.mask]"}}},
	{"completion of nobody", "virtualcq.go", []change{{"if last = t.find(wc.QPNum); last == nil {", "if last = t.find(wc.QPNum); false {"}}},

	// Refusals.
	{"sequence number consumed by a refused post", "rail.go", []change{{
		"\tn, err := r.qp.PostSend(b.wrs[b.head:b.tail])\n\tb.head += n\n",
		"\tn, err := r.qp.PostSend(b.wrs[b.head:b.tail])\n\tif err != nil {\n\t\tn++\n\t}\n\tb.head += n\n"}}},
	{"refused request stays queued", "send.go", []change{{
		"if err = q.checkSend(n, wr); err != nil {\n\t\t\tbreak", "if err = q.checkSend(n, wr); err != nil {\n\t\t\tq.enqueue(wr)\n\t\t\tbreak"}}},
	{"refused for now is taken for good", "dispatch.go", []change{{"if verbs.IsTransient(err) {", "if false {"}}},
	{"receives posted twice after a refusal", "recv.go", []change{{
		"\t\t\t*next, _ = q.recv.win.resolve(wridNumber(batch[accepted].ID), wridNumberMask)\n", ""}}},
	{"scatter list left behind when work moves up", "rail.go", []change{{"\tcopy(list, from.SGL)\n", ""}}},

	// Order and notifications.
	{"notification before its own data", "dispatch.go", []change{{"for q.noted != q.dataDone {", "for q.noted != q.next {"}}},
	{"no markers", "dqplb.go", []change{{"if !rl.dirty || rl == last {", "if !rl.dirty || rl != nil {"}}},
	{"markers where nothing was", "dqplb.go", []change{{"\t\trl.batch.setSGL(wr, 0)\n\t\trl.dirty = false\n", "\t\trl.batch.setSGL(wr, 0)\n"}}},
	{"solicited event not asked for", "dispatch.go", []change{{"\tif r.solicited {\n\t\twr.Flags |= verbs.SendSolicited\n\t}\n\twr.Imm = r.imm", "\twr.Imm = r.imm"}}},
	{"plain data leaves no trace", "dispatch.go", []change{{"rl.dirty = rl.dirty || op == verbs.OpRDMAWrite", "rl.dirty = rl.dirty && op == verbs.OpRDMAWrite"}}},
	{"fence ignored", "dispatch.go", []change{{"if r.fence {", "if false {"}}},
	{"relaxed SEND ignores the fence", "dispatch.go", []change{{"if r.fence {", "if r.fence && r.plan != planMessage {"}}},
	{"fence does not wait for a relaxed SEND", "dispatch.go", []change{{
		"if q.advanceDataDone(); q.dataDone != n {",
		"q.advanceDataDone()\n\t\tto := q.dataDone\n\t\tfor to != n && q.send.at(to).plan == planMessage {\n\t\t\tto++\n\t\t}\n\t\tif to != n {"}}},
	{"relaxed SEND waits like an ordinary one", "send.go", []change{{"case wr.Opcode.IsSend() && wr.Relaxed:", "case wr.Relaxed && q.num == 0:"}}},
	{"ordinary SEND does not wait", "send.go", []change{{"case wr.Opcode.IsSend() && wr.Relaxed:", "case wr.Opcode.IsSend():"},
		{"\tcase wr.Opcode.IsSend():\n\t\tr.plan = planNone\n\t\tr.note = noteDue\n\t\tq.notes++\n", ""}}},
	{"relaxed SENDs swapped", "dispatch.go", []change{
		{"\tr.left++\n\treturn true\n}\n", "\tr.left++\n\tif b := &rl.batch; b.tail-b.head > 1 {\n\t\tb.wrs[b.tail-1], b.wrs[b.tail-2] = b.wrs[b.tail-2], b.wrs[b.tail-1]\n\t}\n\treturn true\n}\n"}}},
	{"relaxed SENDs where credits wait", "dispatch.go", []change{{"\trl := q.sendOn\n\tif", "\trl := q.rails[0]\n\tif"}}},
	{"slot of a relaxed SEND leaks", "complete.go", []change{{"\tr.left = 0\n\tq.slotFreed(rl)\n", "\tr.left = 0\n"}}},
	{"relaxed SEND is done before it is acknowledged", "dispatch.go", []change{{"\tr.left++\n\treturn true\n", "\treturn true\n"}}},
	{"a relaxed SEND's failure is not told", "complete.go", []change{{
		"\tr.left = 0\n\tq.slotFreed(rl)\n\tif wc.Status != verbs.StatusSuccess {", "\tr.left = 0\n\tq.slotFreed(rl)\n\tif false {"}}},
	{"data done is not moved on by a relaxed SEND", "complete.go", []change{{"\tif n == q.dataDone {\n\t\tq.advanceDataDone()\n\t}\n", ""}}},
	{"two fragments of every rail on one rail", "dispatch.go", []change{{"rl := q.rails[r.fragments]", "rl := q.rails[max(int(r.fragments), 1)%len(q.rails)]"}}},
	{"fragments of every rail as long as others", "dispatch.go", []change{{"return r.length / uint64(len(q.rails))", "return uint64(q.cfg.MaxMsgSize)"}}},
	{"every rail but those that are full", "dispatch.go", []change{{
		"\t\trl := q.rails[r.fragments]\n\t\tif !rl.hasRoom() {\n\t\t\treturn false\n\t\t}\n",
		"\t\trl := q.rails[r.fragments]\n\t\tif !rl.hasRoom() {\n\t\t\tif rl = q.pickRail(); rl == nil {\n\t\t\t\treturn false\n\t\t\t}\n\t\t}\n"}}},
	{"a write over every rail leaves no trace", "dispatch.go", []change{{"\t\trl.dirty = rl.dirty || r.opcode == verbs.OpRDMAWrite\n", ""}}},
	{"atomics on any rail", "dispatch.go", []change{{"rl := q.rails[0]\n\tif !rl.hasRoom() {", "rl := q.pickRail()\n\tif rl == nil || !rl.hasRoom() {"}}},
	{"user's immediate on another rail", "dqplb.go", []change{{"rl := q.rails[r.immRail]", "rl := q.rails[0]"}}},
	{"user's immediate left out", "dqplb.go", []change{{"return !r.owesImm || q.stageRawImm(n, r)", "return true"}}},
	{"banked notification lost", "credit.go", []change{{"\tq.recv.bank.push(n)\n", ""}}},
	{"notification for a receive that waits for a message", "recv.go", []change{{"\t\tif !r.message {\n\t\t\treturn r\n\t\t}\n", "\t\treturn r\n"}}},

	// Numbers, credits, limits.
	{"numbers wrap one late", "seq.go", []change{{"seqMod      = 1<<24 - 1", "seqMod      = 1 << 24"}}},
	{"first number of the wrong end", "connect.go", []change{{"q.arrived.next = peer.FirstNumber", "q.arrived.next = q.cfg.FirstNumber"}}},
	{"number that came twice dropped in silence", "credit.go", []change{{
		"\t\tq.protocolError(rl, fmt.Sprintf(\"number %d came twice: expecting %d\", num, q.arrived.next))\n", ""}}},
	{"next number wrong at the wrap", "seq.go", []change{{"if s++; s == seqMod {", "if s++; s > seqMod {"}}},
	{"distance wrong across the wrap", "seq.go", []change{{"return s + seqMod - base", "return s + seqMod - base + 1"}}},
	{"numbers not looked at", "seq.go", []change{{"\td := seqDistance(r.next, num)\n", "\td := seqDistance(num, num)\n"}}},
	{"numbers go on after a reset", "reset.go", []change{{"\t\tq.arrived = numberReceiver{}\n", ""}}},
	{"credit leak", "credit.go", []change{{"\trl.owed++\n", "\tif q.counters.recvsDone%8 != 7 {\n\t\trl.owed++\n\t}\n"}}},
	{"slot leak", "complete.go", []change{{"\trl.inUse--\n\tif rl == q.notify {\n", "\tif rl == q.notify {\n"}}},
	{"limit of a queue ignored", "rail.go", []change{{"return r.inUse < r.limit", "return r.inUse <= r.limit"}}},
	{"credits posted on rails that were stopped", "credit.go", []change{{"\t\tif q.killed {\n\t\t\treturn //", "\t\tif false {\n\t\t\treturn //"}}},
	{"bank without a bottom", "credit.go", []change{{" || q.recv.bank.len() >= q.cfg.MaxBanked", ""}}},

	// Devices.
	{"equal numbers on two NICs confused", "virtualcq.go", []change{{
		"c.cqs = append(c.cqs, physicalCQ{cq: cq, device: dev, routes: c.routes[dev]})", "c.cqs = append(c.cqs, physicalCQ{cq: cq, device: dev, routes: c.routes[cqs[0].Device().ID()]})"}}},
	{"rail of the CQ polled before", "virtualcq.go", []change{
		{"\t\tvar last *rail // completions come in bursts of one queue pair\n", ""},
		{"\tfirst := c.turn\n", "\tfirst := c.turn\n\tvar last *rail\n"}}},
	{"local key of another device", "dispatch.go", []change{{
		"sgl[0] = verbs.SGE{Addr: r.localAddr + r.offset, Length: uint32(size), LKey: r.localKeys.at(rl.device)}",
		"sgl[0] = verbs.SGE{Addr: r.localAddr + r.offset, Length: uint32(size), LKey: r.localKeys.at(q.rails[0].device)}"}}},
	{"remote key of the local device", "dispatch.go", []change{{"\twr.RKey = r.remoteKeys.at(rl.peerDev)\n\treturn wr", "\twr.RKey = r.remoteKeys.at(rl.device)\n\treturn wr"}}},
	{"a piece of a scatter list skipped", "dispatch.go", []change{{
		"x.piece, x.pieceOff = x.piece+1, 0", "x.piece, x.pieceOff = x.piece+1, x.pieceOff&1"}}},
	{"room in a CQ not given back", "close.go", []change{{"\t\tc.room[r.device] += r.slots + r.recvLimit\n", ""}}},
	{"a poll of one device takes from all", "virtualcq.go", []change{{"n, err = c.poll(dst, int(dev))", "n, err = c.poll(dst, -1)"}}},
	{"death of a CQ told nobody", "virtualcq.go", []change{{
		"failed = errors.Join(failed, fmt.Errorf(\"ibverbx: poll %s: %w\", pc.cq.Device().Name(), err))", "_ = fmt.Errorf"}}},
	{"failed rail not noticed", "connect.go", []change{{"\t\tq.watchRails()\n", ""}}},

	// Life and its end.
	{"packet numbers of the former life", "reset.go", []change{{"= newPSN(), r.device", "= r.psn, r.device"}}},
	{"no linger", "fail.go", []change{{"case time.Since(q.since) > q.cfg.Linger:", "case !q.since.IsZero():"}}},
	{"what a drain flushes is a failure", "fail.go", []change{{
		"return s == verbs.StatusWRFlushErr && q.phase >= drainRecvs", "return s == verbs.StatusWRFlushErr && q.phase > drainDone"}}},
	{"a drain that does not show", "virtualqp.go", []change{{"\t\treturn verbs.StateSQD\n", "\t\treturn q.state\n"}}},
	{"posts accepted while draining", "send.go", []change{{"\tcase q.phase != drainNone:\n\t\treturn ErrDraining\n", ""}}},
}
