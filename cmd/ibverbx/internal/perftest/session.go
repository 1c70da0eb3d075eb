package perftest

import (
	"context"
	"errors"
	"fmt"
	"net"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/nicoffer"
	"ibverbx/verbs"
)

// session is one test with one peer.
type session struct {
	*talk
	*end
	cfg    *Config
	report Report
}

// Run is one end of a test: the client, which has made the connection, or the server. It owns the
// connection, and closes it. cfg was validated. The report is nil if the two ends failed before
// they connected their queue pairs.
func Run(ctx context.Context, nc net.Conn, client bool, dev verbs.Device, cfg *Config) (r *Report,
	err error) {
	defer func() { _ = nc.Close() }()
	defer context.AfterFunc(ctx, func() { _ = nc.Close() })()
	e, err := probe(dev, cfg)
	if err != nil {
		return nil, err
	}
	s := &session{talk: newTalk(ctx, nc, client, cfg.Timeout), end: e, cfg: cfg}
	s.report = Report{Kind: cfg.Kind, Client: client, QPs: cfg.QPs, TxDepth: cfg.sends(),
		NIC: nicoffer.NameOf(dev), GID: e.gid.GID, Results: []Result{},
		Peer: Peer{Address: nc.RemoteAddr().String()}}
	defer func() { err = errors.Join(err, e.close()) }()
	err = s.order()
	if s.report.PathMTU == 0 {
		return nil, err
	}
	return &s.report, err
}

// order takes all steps of the test.
func (s *session) order() error {
	if err := inOrder(s.greet, s.open); err != nil {
		return err
	}
	switch s.cfg.Kind {
	case SendBW, SendLat:
		return inOrder(s.introduce, s.connect, s.ready, s.confirm, s.measure, s.finish)
	case WriteLat:
		return inOrder(s.announce, s.introduce, s.connect, s.confirm, s.ready, s.measure, s.leave)
	case ReadLat:
		return inOrder(s.announce, s.introduce, s.connect, s.confirm, s.ready, s.measure, s.finish)
	}
	return inOrder(s.introduce, s.connect, s.confirm, s.ready, s.measure, s.finish)
}

// inOrder takes steps until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// greet exchanges versions and properties of the hosts: the ends use the larger page and cache
// line, and the smaller path MTU.
func (s *session) greet() error {
	in, err := s.exchange("version", encodeVersion(Version), false)
	if err != nil {
		return err
	}
	text, number, err := decodeVersion(in)
	if err != nil {
		return err
	}
	if s.report.Peer.Version = text; number < leastVersion {
		return fmt.Errorf("%w: the peer is perftest %s, whose conversation is another one: it has to be "+
			"5.70 or later", ErrMismatch, text)
	}
	if s.page, err = s.larger("page size", 4096, maxPage); err != nil {
		return err
	}
	if s.stride, err = s.larger("cache line", 64, 1<<16); err != nil {
		return err
	}
	in, err = s.exchange("path MTU", encodeMTU(s.mtu), false)
	if err != nil {
		return err
	}
	mtu, err := decodeMTU(in)
	if err != nil {
		return err
	}
	s.report.Peer.MTU = mtu.Bytes()
	s.mtu = min(s.mtu, mtu)
	return nil
}

// larger exchanges a number, and returns the larger of both.
func (s *session) larger(what string, own, most int32) (int, error) {
	in, err := s.exchange(what, encodeNumber(own), false)
	if err != nil {
		return 0, err
	}
	peer, err := decodeNumber(in, what, most)
	return max(int(own), peer), err
}

// announce exchanges the keys of queue pair 0; introduce does so again.
func (s *session) announce() error {
	_, err := s.keys("announcement", 0, false)
	return err
}

// introduce exchanges the keys of all queue pairs.
func (s *session) introduce() error {
	peers := make([]keys, s.cfg.QPs)
	for i := range peers {
		var err error
		if peers[i], err = s.keys(fmt.Sprintf("keys of queue pair %d", i), i, false); err != nil {
			return err
		}
	}
	s.report.Peer.GID = peers[0].gid
	return s.meet(peers)
}

// connect connects the queue pairs.
func (s *session) connect() error {
	if err := s.end.connect(s.mtu); err != nil {
		return err
	}
	s.report.PathMTU = s.mtu.Bytes()
	return nil
}

// confirm exchanges the keys of all queue pairs again.
func (s *session) confirm() error {
	for i := range s.cfg.QPs {
		if err := s.sync(fmt.Sprintf("keys of queue pair %d once more", i), i, false); err != nil {
			return err
		}
	}
	return nil
}

// ready reports that this end's queue pairs are connected, and waits until the peer's are.
func (s *session) ready() error { return s.sync("word that its queue pairs are connected", 0, false) }

// keys exchanges the keys of queue pair i.
func (s *session) keys(step string, i int, patient bool) (keys, error) {
	in, err := s.exchange(step, s.own[i].encode(), patient)
	if err != nil {
		return keys{}, err
	}
	k, err := decodeKeys(in)
	if err != nil {
		return k, fmt.Errorf("%s: %w; %s", step, err, agree)
	}
	return k, nil
}

// sync is a point at which both ends wait for each other:
// the peer repeats its keys of queue pair i.
func (s *session) sync(step string, i int, patient bool) error {
	k, err := s.keys(step, i, patient)
	switch {
	case err != nil:
		return err
	case k.qp != s.peers[i].qp || k.gid != s.peers[i].gid:
		return fmt.Errorf("%w: %s: the peer names its queue pair %#x, and named %#x before: it has more of "+
			"them than the %d here, or is another kind of test; %s", ErrMismatch, step, k.qp, s.peers[i].qp,
			s.cfg.QPs, agree)
	}
	return nil
}

// measure moves the messages. With writes and reads only the client is active; after a bandwidth
// test it sends its figures to the server.
func (s *session) measure() error {
	kind := s.cfg.Kind
	if s.client || kind.opcode() == verbs.OpSend || kind.Halved() {
		if err := s.messages(); err != nil {
			return err
		}
	}
	if kind != WriteBW && kind != ReadBW {
		return nil
	}
	if err := s.sync("end of its messages", 0, true); err != nil {
		return err
	}
	if s.client {
		_, err := s.exchangeReports(&s.report.Results[0])
		return err
	}
	theirs, err := s.exchangeReports(&Result{})
	if err != nil {
		return err
	}
	if err := theirs.check(s.cfg.QPs); err != nil {
		return err
	}
	s.report.Results = append(s.report.Results, Result{Size: int(theirs.Size), Messages: int(theirs.Messages),
		GBPerSecond: theirs.Average * s.cfg.unit() / 1e9, MsgPerSecond: theirs.Rate * 1e6})
	return nil
}

// messages moves the messages. If both ends act they begin together, once receives are posted.
func (s *session) messages() error {
	st := newStream(s.end, s.client)
	if err := st.expect(); err != nil {
		return err
	}
	if st.opcode == verbs.OpSend {
		if err := s.sync("begin of its messages", 0, false); err != nil {
			return err
		}
	}
	ctx, stop := s.watch()
	took, err := st.run(&waiter{ctx: ctx, limit: s.cfg.Timeout})
	stop()
	switch {
	case err != nil && s.ctx.Err() != nil: // the test was interrupted, whatever has failed since
		return context.Cause(s.ctx)
	case err != nil:
		return err
	}
	r := Result{Size: s.cfg.Size, Messages: s.cfg.Messages * s.cfg.QPs, Seconds: max(took.Seconds(), 1e-9),
		Latency: st.samples.Percentiles()}
	r.MsgPerSecond = float64(r.Messages) / r.Seconds
	if r.Latency == nil {
		r.GBPerSecond = r.MsgPerSecond * float64(r.Size) / 1e9
	}
	s.report.Results = append(s.report.Results, r)
	return nil
}

// exchangeReports exchanges the figures. The peak is 0: perftest sends 0 too when it measures none.
func (s *session) exchangeReports(r *Result) (report, error) {
	own := report{Size: uint64(r.Size), Messages: uint64(r.Messages),
		Average: r.GBPerSecond * 1e9 / s.cfg.unit(), Rate: r.MsgPerSecond / 1e6}
	var theirs []byte
	for figure := range own.figures() {
		in, err := s.exchange("report", figure, true)
		if err != nil {
			return report{}, err
		}
		theirs = append(theirs, in...)
	}
	return decodeReport(theirs)
}

// finish reports that this end is done, and waits until the peer is.
func (s *session) finish() error {
	if err := s.sync("end of the test", 0, true); err != nil {
		return err
	}
	s.bye(farewell)
	return nil
}

// leave ends without a message.
func (s *session) leave() error {
	s.bye("")
	return nil
}

// Peer is the other end, as far as the conversation shows it.
type Peer struct {
	Address string    `json:"address"`
	Version string    `json:"version"` // of perftest
	GID     verbs.GID `json:"gid"`
	MTU     int       `json:"mtu_bytes"` // the largest that it supports
}

// Report describes a test.
type Report struct {
	Kind    Kind      `json:"test"`
	Client  bool      `json:"client"`
	QPs     int       `json:"qps"`
	TxDepth int       `json:"tx_depth"` // sends outstanding on a queue pair
	NIC     string    `json:"nic"`
	GID     verbs.GID `json:"gid"`
	PathMTU int       `json:"path_mtu_bytes"`
	Peer    Peer      `json:"peer"`
	Results []Result  `json:"results"` // one, or none if this end has measured nothing
}

// Result holds the figures.
type Result struct {
	Size     int `json:"size_bytes"`
	Messages int `json:"messages"` // of all queue pairs
	// Seconds is the time measured by this end; 0 if only the peer has measured, whose figures
	// these are.
	Seconds      float64           `json:"seconds,omitempty"`
	GBPerSecond  float64           `json:"gb_per_second"` // 10^9 bytes
	MsgPerSecond float64           `json:"messages_per_second"`
	Latency      *bench.Percentile `json:"latency,omitempty"`
}
