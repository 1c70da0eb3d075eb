package sendside

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

// TestTaggedMutations plants bugs in package tagged.
func TestTaggedMutations(t *testing.T) { flags.Hunt(t, &Tagged, taggedMutations, 8000) }

func inTagged(name, file string, changes ...hunt.Change) hunt.Mutation {
	return hunt.Mutation{Name: name, File: "tagged/" + file, Changes: changes}
}

// taggedMutations are the bugs that worlds of messages must show.
var taggedMutations = []hunt.Mutation{
	// Matching.
	inTagged("receives for one tag before older wildcards", "match.go", hunt.Change{Old: "(first == nil || e.seq < first.seq)", New: "first == nil"}),
	inTagged("a bit of the mask ignored", "match.go", hunt.Change{Old: "return (tag^e.tag)&e.mask == 0", New: "return (tag^e.tag)&e.mask&^2 == 0"}),
	inTagged("newest message first", "match.go", hunt.Change{
		Old: "\tfor e := u.all.head; e != nil; e = e.listNext {\n", New: "\tfor e := u.all.tail; e != nil; e = e.listPrev {\n"}),
	inTagged("wildcard receives in the wrong order", "match.go", hunt.Change{
		Old: "\t\tp.wild.push(e)\n", New: "\t\tif e.listNext = p.wild.head; p.wild.head == nil {\n\t\t\tp.wild.tail = e\n\t\t} else {\n\t\t\tp.wild.head.listPrev = e\n\t\t}\n\t\te.listPrev, p.wild.head = nil, e\n"}),
	inTagged("cancelled receive stays posted", "request.go", hunt.Change{Old: "\t\tw.posted.remove(&r.match)\n", New: ""}),
	inTagged("cancelled send goes out", "request.go", hunt.Change{Old: "\tif r.stage != requestQueued {\n", New: "\tif r.ep != nil && r.stage == requestQueued {\n\t\treturn true\n\t}\n\tif r.stage != requestQueued {\n"}),

	// Content.
	inTagged("as much of a long message as fits", "arrive.go", hunt.Change{
		Old: "\tif len(data) > r.data.length {\n\t\tr.complete", New: "\tif len(data) > r.data.length {\n\t\tr.data.scatter(data[:r.data.length])\n\t\tr.complete"}),
	inTagged("position lost where resources lack", "send.go", hunt.Change{Old: "\t\t\tr.data.piece, r.data.offset = piece, offset\n", New: "\t\t\t_, _ = piece, offset\n"}),
	inTagged("position lost where a batch is refused", "batch.go", hunt.Change{Old: "\t\tr.data.rewind() // the batch", New: "\t\t// the batch"}),
	inTagged("every chunk to the same place", "reading.go", hunt.Change{Old: "to.segment(rd.toOffset, n)", New: "to.segment(0, n)"}),
	inTagged("every chunk from the same place", "reading.go", hunt.Change{Old: "from.Addr+rd.fromOffset, n", New: "from.Addr, n"}),
	inTagged("long message done with its first chunk", "reading.go", hunt.Change{Old: "rd.done == rd.length)", New: "rd.done != 0)"}),
	inTagged("rest of a message lost that was matched on its way", "receive.go", hunt.Change{Old: "\t\t\te.partial.req = r\n", New: ""}),

	// When a send is done.
	inTagged("synchronous send is done when it has gone", "push.go", hunt.Change{Old: "case !r.sync || r.matched:", New: "case r.stage != requestDone:\n\t\te.waiting.remove(r)"}),
	inTagged("synchronous sends in batches", "batch.go", hunt.Change{Old: "!r.sync && !r.long", New: "!r.long"}),
	inTagged("long send is done when it is announced", "push.go", hunt.Change{Old: "\t\te.w.stats.announced++\n", New: "\t\te.w.stats.announced++\n\t\te.waiting.remove(r)\n\t\tr.complete(nil)\n"}),
	inTagged("match of a kept message not told", "receive.go", hunt.Change{Old: "\t\te.tellMatched(in.id)\n", New: ""}),

	// The window.
	inTagged("window ignored", "send.go", hunt.Change{Old: "e.ledger.admits() && n <=", New: "n <="}),
	inTagged("window only by halves", "ledger.go", hunt.Change{Old: " || l.open == 0)", New: ")"}),
	inTagged("window of one fragment for all", "receive.go", hunt.Change{Old: "e.ledger.consumed(in.fragments)", New: "e.ledger.consumed(1)"}),

	// Ends.
	inTagged("receive forgotten whose message was on its way", "ending.go", hunt.Change{Old: "\tif r := e.partial.req; r != nil {\n", New: "\tif r := e.partial.req; r != nil && e.name == \"\" {\n"}),
	inTagged("sends forgotten that wait to be read", "ending.go", hunt.Change{Old: "\t\tif r != nil {\n\t\t\te.waiting.remove(r)\n", New: "\t\tif r != nil && r.sync {\n\t\t\te.waiting.remove(r)\n"}),
}
