package job_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/job"
	"ibverbx/rendezvous"
)

// Conversations that know the name of the job, and never say which process they are, keep none out,
// however many there are: they make room after a second, and Join tries again if there is none.
func TestCrowd(t *testing.T) {
	t.Parallel()
	cfg := config(t, 2)
	cfg.Patience = time.Hour // for which each of them would stay
	cfgs := ranks(cfg)
	var crowd sync.WaitGroup
	defer crowd.Wait()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	arrived := make(chan struct{}, 300)
	for range cap(arrived) {
		crowd.Go(func() {
			c, err := rendezvous.Dial(ctx, cfg.Address, rendezvous.Config{Protocol: protocol(&cfg),
				Timeout: time.Minute, Retry: time.Minute})
			arrived <- struct{}{}
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = c.Next(ctx) // that it makes room, or that the job has ended
			_ = c.Close()
		})
	}
	allRight(t, each(t, cfgs[:1], func(ctx context.Context, j *job.Job) error { return j.Barrier(ctx) },
		func() error {
			for range cap(arrived) {
				<-arrived
			}
			j, err := job.Join(t.Context(), cfgs[1])
			if err != nil {
				return err
			}
			return errors.Join(j.Barrier(t.Context()), j.Close())
		}))
}

// Join tries again as long as rank 0 says that it has no room. A launcher hears of the last attempt
// alone.
func TestBusy(t *testing.T) {
	launcher, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
	t.Setenv(job.EnvReport, launcher.LocalAddr().String())
	cfg := config(t, 2)
	cfg.Rank = 1
	l, joined := joining(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, why := range []error{rendezvous.ErrBusy, rendezvous.ErrBusy, errors.New("enough")} {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.Fail(why)
	}
	if err := <-joined; blame(err, 0, job.ErrFailed) != nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("joined: %v", err)
	}
	report := make([]byte, 1000)
	_ = launcher.SetReadDeadline(time.Now().Add(time.Minute))
	n, _, err := launcher.ReadFrom(report)
	if err != nil || !strings.Contains(string(report[:n]), "enough") {
		t.Errorf("the launcher hears first: %s, %v", report[:n], err)
	}
}

// Who connects to rank 0 does not learn the name of the job, and cannot join by returning what rank
// 0 has said.
func TestEcho(t *testing.T) {
	cfg := config(t, 2)
	cfgs := ranks(cfg)
	refused := make(chan error, 1)
	allRight(t, each(t, cfgs[:1], func(ctx context.Context, j *job.Job) error { return j.Barrier(ctx) },
		func() error {
			said := heardAt(t, cfg.Address)
			if strings.Contains(said, cfg.Job) {
				t.Errorf("rank 0 says the name: %q", said)
			}
			c, err := rendezvous.Dial(t.Context(), cfg.Address, rendezvous.Config{Protocol: said[13:]})
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.Send(t.Context(), "join", process{1, "node7", 4242, 2, said[13:]}); err != nil {
				return err
			}
			_, err = c.Next(t.Context())
			refused <- err
			j, err := job.Join(t.Context(), cfgs[1])
			if err != nil {
				return err
			}
			return errors.Join(j.Barrier(t.Context()), j.Close())
		}))
	if err := <-refused; !strings.Contains(err.Error(), "does not know the name") {
		t.Errorf("the stranger is told: %v", err)
	}
}

// heardAt is what rank 0 says first to everybody: a magic of 8 bytes, a version of 4, the length of
// the protocol's name and that name.
func heardAt(t *testing.T, address string) string {
	for {
		c, err := net.Dial("tcp", address)
		if err != nil {
			time.Sleep(time.Millisecond) // not there yet
			continue
		}
		defer c.Close()
		said := make([]byte, 13)
		if _, err = io.ReadFull(c, said); err == nil {
			said = append(said, make([]byte, said[12])...)
			_, err = io.ReadFull(c, said[13:])
		}
		if err != nil {
			t.Error(err)
		}
		return string(said)
	}
}

// A launcher hears again and again which ranks the others wait for.
func TestMissing(t *testing.T) {
	for rank, want := range []string{`"missing":[1,2]`, `"missing":[0]`} {
		launcher, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer launcher.Close()
		t.Setenv(job.EnvReport, launcher.LocalAddr().String())
		cfg := config(t, 3)
		cfg.Rank, cfg.Patience = rank, 20*time.Millisecond
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		joined := make(chan error, 1)
		go func() {
			_, err := job.Join(ctx, cfg)
			joined <- err
		}()
		_ = launcher.SetReadDeadline(time.Now().Add(time.Minute))
		report := make([]byte, 1000)
		for range 2 {
			n, _, err := launcher.ReadFrom(report)
			if got := string(report[:n]); err != nil || !strings.Contains(got, want) ||
				!strings.Contains(got, cfg.Job) {
				t.Errorf("rank %d: the launcher hears %s, %v", rank, got, err)
			}
		}
		cancel(enough)
		if err := <-joined; !errors.Is(err, enough) {
			t.Errorf("rank %d joined: %v", rank, err)
		}
	}
}
