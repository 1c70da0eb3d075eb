package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"ibverbx/internal/jobtest"
	"ibverbx/job"
	"ibverbx/job/etcd"
)

// What tells a process of a job where etcd is, and whether it gets its rank from there.
const (
	endpointEnv = "IBVERBX_TEST_ETCD"
	ranksEnv    = "IBVERBX_TEST_ETCD_RANKS"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	jobtest.Main(configure)
	code := m.Run()
	if shared.cmd != nil {
		shared.kill()
		_ = os.RemoveAll(shared.dir)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// configure has a process of a job find the others by etcd.
func configure(ctx context.Context, cfg *job.Config) (func() error, error) {
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{os.Getenv(endpointEnv)}, Lease: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	cfg.Store = s
	if name := os.Getenv(ranksEnv); name != "" {
		cfg.Size, cfg.Job = jobtest.Size, name
		if cfg.Rank, err = s.Rank(ctx, name, cfg.Size); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		fmt.Fprintln(os.Stderr, "rank", cfg.Rank)
	}
	return s.Close, nil
}

// serverEnv has the test binary be etcd: "DIRECTORY ADDRESS", and files of a certificate, its key,
// and that of an authority for a TLS that asks clients for certificates.
const serverEnv = "IBVERBX_TEST_ETCD_SERVER"

// serve runs etcd, and writes its address, until its standard input ends, with the test.
func serve() error {
	task := strings.Fields(os.Getenv(serverEnv))
	client := url.URL{Scheme: "http", Host: task[1]}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync = task[0], true
	cfg.TickMs, cfg.ElectionMs = 10, 200
	if len(task) > 2 {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: task[2], KeyFile: task[3], TrustedCAFile: task[4],
			ClientCertAuth: true}
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	<-e.Server.ReadyNotify()
	fmt.Println(e.Clients[0].Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// server is an etcd, in a process of its own.
type server struct {
	once  sync.Once
	dir   string
	files []string // of TLS
	addr  string   // HOST:PORT, the same each time it starts
	cmd   *exec.Cmd
	in    io.Closer
}

// shared is one for all tests that do not stop it.
var shared server

// running returns the shared server.
func running(tb testing.TB) *server {
	tb.Helper()
	if err := shared.first(); err != nil {
		tb.Fatal(err)
	}
	return &shared
}

// exampleServer is where the shared server listens.
func exampleServer() string {
	if err := shared.first(); err != nil {
		log.Fatal(err)
	}
	return shared.addr
}

// first starts the server unless it runs.
func (s *server) first() (err error) {
	s.once.Do(func() {
		if s.dir, err = os.MkdirTemp("", "etcd"); err == nil {
			err = s.run()
		}
	})
	return err
}

// own returns a server for one test, with TLS if there are files for it.
func own(tb testing.TB, files ...string) *server {
	tb.Helper()
	s := &server{dir: tb.TempDir(), files: files}
	s.start(tb)
	tb.Cleanup(s.kill)
	return s
}

// start starts it, with what it had kept.
func (s *server) start(tb testing.TB) {
	tb.Helper()
	if err := s.run(); err != nil {
		tb.Fatalf("etcd does not start: %v", err)
	}
}

func (s *server) run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if s.addr == "" {
		s.addr = "127.0.0.1:0"
	}
	s.cmd = exec.Command(self)
	task := strings.Join(append([]string{s.dir, s.addr}, s.files...), " ")
	s.cmd.Env = append(os.Environ(), serverEnv+"="+task)
	s.cmd.Stderr = os.Stderr
	in, err1 := s.cmd.StdinPipe()
	out, err2 := s.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, s.cmd.Start()); err != nil {
		return err
	}
	s.in = in
	_, err = fmt.Fscanln(out, &s.addr)
	return err
}

// kill kills it, as a host does that fails.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	_ = s.in.Close()
}

// open opens a store.
func open(tb testing.TB, cfg etcd.Config) *etcd.Store {
	tb.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := etcd.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// in configures a store under a prefix of the test's own.
func in(tb testing.TB, s *server) etcd.Config {
	tb.Helper()
	return etcd.Config{Endpoints: []string{s.addr}, Prefix: "/" + tb.Name() + "/"}
}

// nobody is an address at which nobody listens.
func nobody(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silence is the address of a server that takes connections and says nothing.
func silence(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var taken sync.WaitGroup
	taken.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	})
	tb.Cleanup(func() { _ = l.Close(); taken.Wait() })
	return l.Addr().String()
}
